// Ranks arranged as a mesh: a group along each axis, and data parallel along its own axis alone.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::mesh_ranks_test {
namespace {

// The ranks of a group, in its order.
std::vector<int64_t> members(comm::Group& group, int rank) {
  const int64_t own = rank;
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  group.all_gather({&own, 1, DType::i64}, {all.data(), all.size(), DType::i64});
  return all;
}

TEST(MeshRanks, EachAxisHasAGroup) {
  expect_all_fine(run_ranks(Backend::shm, 6, [](Rank& rank) {
    fleet::join(rank.group, {.pipeline = 3});
    require(to_string(fleet::mesh()) == "data 2 × pipeline 3", to_string(fleet::mesh()));
    for (Axis axis : {Axis::data, Axis::pipeline}) {
      const std::vector<int> expected = fleet::mesh().ranks_along(axis);
      require(members(fleet::group(axis), fleet::rank()) == std::vector<int64_t>(expected.begin(), expected.end()),
              std::string("other ranks along ") + name_of(axis));
    }
    try {
      fleet::group(Axis::tensor);
      require(false, "there is no other rank along tensor");
    } catch (const ConfigError& error) {
      require(std::string(error.what()).find("the only one along the tensor axis") != std::string::npos, error.what());
    }
    require(fleet::sampler().world == 2 && fleet::sampler().rank == fleet::rank() % 2, "samples go by the data axis");
    fleet::leave();
    require(fleet::mesh().world() == 1, "the mesh outlives the job");
  }));
}

// Two replicas of a model in two parts, which differ: weights are the first replica's, gradients the mean over both.
TEST(MeshRanks, GradientsAreAveragedAlongDataAlone) {
  expect_all_fine(run_ranks(Backend::shm, 4, [](Rank& rank) {
    fleet::join(rank.group, {.pipeline = 2});
    const int data = fleet::mesh().place(Axis::data), stage = fleet::mesh().place(Axis::pipeline);
    nn::Linear model({.in = 1, .out = 1, .bias = false});
    const float first = static_cast<float>(10 * stage + data);
    model.parameters()[0].load(std::as_bytes(std::span(&first, 1)));
    model = fleet::distributed_model(model);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 1}));
    require(model.parameters()[0].value().item<float>() == static_cast<float>(10 * stage), "not the first's weights");
    const auto x = static_cast<float>(1 + data + 100 * stage);
    sum(model(Tensor::from<float>({x}, {1, 1}))).backward();
    optimizer.step();
    const float expected = static_cast<float>(10 * stage) - (1.5F + static_cast<float>(100 * stage));
    const float found = model.parameters()[0].value().item<float>();
    require(found == expected, fmt::format("{} instead of {}", found, expected));
    fleet::leave();
  }));
}

// Along an axis its ranks make the same collectives; along another one of them may make more.
TEST(MeshRanks, WhatOthersDoAlongAnotherAxisIsNotCompared) {
  expect_all_fine(run_ranks(Backend::shm, 4, [](Rank& rank) {
    fleet::join(rank.group, {.pipeline = 2, .tensor = 2});
    const bool is_first = fleet::mesh().place(Axis::pipeline) == 0;
    Tensor own = Tensor::from<float>({1}, {1});
    if (is_first) own = comm::all_reduce(own, Axis::tensor);
    const float sum = comm::all_reduce(own, Axis::pipeline).item<float>();
    require(sum == 3, fmt::format("{} instead of 2 + 1", sum));
    fleet::leave();
  }));
}

TEST(MeshRanks, RanksThatCannotBeArrangedSoAreToldSo) {
  expect_all_fine(run_ranks(Backend::shm, 3, [](Rank& rank) {
    try {
      fleet::join(rank.group, {.tensor = 2});
      require(false, "three ranks as pairs");
    } catch (const ConfigError& error) {
      require(std::string(error.what()).find("3 ranks cannot be arranged") != std::string::npos, error.what());
    }
    require(fleet::world_size() == 1, "half joined");
  }));
}

}  // namespace
}  // namespace bonfire::testing::mesh_ranks_test
