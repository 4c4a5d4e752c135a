// Gradients that go through several communicators at once are those of one, whatever the ranks are connected by.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::communicators_test {
namespace {

class LocalGroupCommunicators : public ::testing::TestWithParam<Backend> {};
class Communicators : public ::testing::TestWithParam<Backend> {
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
};

// The weights after a few steps whose gradients are four all-reduces each, of 4 KiB to 256 KiB.
std::vector<std::vector<std::byte>> train(int64_t communicators) {
  const Device device{DeviceType::cpu, static_cast<int16_t>(fleet::rank())};
  manual_seed(3);
  nn::Sequential plain({nn::Linear({.in = 16, .out = 64}), nn::Linear({.in = 64, .out = 1024}),
                        nn::Linear({.in = 1024, .out = 16}), nn::Linear({.in = 16, .out = 4})});
  plain.to(device);
  nn::Sequential model = fleet::distributed_model(plain);
  auto optimizer = fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.1, .momentum = 0.9}),
                                                {.nccl_comm_num = communicators, .fuse_parameter_groups_size = 1});
  for (int64_t step = 0; step < 4; ++step) {
    mean(tanh(model(normal_random({8, 16}, DType::f32, device)))).backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  std::vector<std::vector<std::byte>> weights;
  for (const Parameter& parameter : model.parameters()) weights.push_back(parameter.save());
  return weights;
}

void any_number_gives_the_same_bits(Backend backend) {
  expect_all_fine(run_ranks(backend, 2, [](Rank& rank) {
    std::vector<std::vector<std::byte>> one;
    for (int64_t number : {1, 2, 3}) {
      fleet::join(rank.group);
      std::vector<std::vector<std::byte>> weights = train(number);
      fleet::leave();
      if (number == 1) one = weights;
      require(weights == one, "other weights with " + std::to_string(number) + " communicators");
    }
  }));
}

TEST_P(LocalGroupCommunicators, AnyNumberGivesTheSameBits) { any_number_gives_the_same_bits(GetParam()); }
TEST_P(Communicators, AnyNumberGivesTheSameBits) { any_number_gives_the_same_bits(GetParam()); }

std::string backend_name(const ::testing::TestParamInfo<Backend>& info) { return name_of(info.param); }

INSTANTIATE_TEST_SUITE_P(Backends, LocalGroupCommunicators, ::testing::Values(Backend::local, Backend::staged),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Backends, Communicators, ::testing::Values(Backend::shm, Backend::gloo, Backend::mpi),
                         backend_name);

}  // namespace
}  // namespace bonfire::testing::communicators_test
