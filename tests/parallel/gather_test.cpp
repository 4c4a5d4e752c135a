#include "bonfire/parallel/gather.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/nn/linear.h"
#include "bonfire/parallel/fleet.h"
#include "tests/graph/random_slice.h"

namespace bonfire::fleet::gather_test {
namespace {

// Calls body on so many ranks, each a thread with a device of its own; the errors of each.
std::vector<std::string> on_ranks(int count, const std::function<void(int rank)>& body) {
  auto groups = comm::local_groups(count, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r)
    threads.emplace_back([&, r] {
      try {
        join(groups[static_cast<size_t>(r)]);
        body(r);
        leave();
      } catch (const Error& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_all(const std::vector<std::string>& errors, const std::string& text) {
  for (size_t r = 0; r < errors.size(); ++r)
    EXPECT_NE(errors[r].find(text), std::string::npos) << "rank " << r << ": " << errors[r];
}

Variable counting(const Shape& shape, const Slice& slice, float first = 0) {
  Variable variable({shape, DType::f32, {}}, "w");
  variable.set_first_values(first_values([first](int64_t i) { return first + static_cast<float>(i); }));
  variable.keep_slice(slice);
  return variable;
}

std::vector<float> numbers(const Shape& shape) {
  std::vector<float> all(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i);
  return all;
}

TEST(Gather, PutsSlicesOfAllKindsTogether) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 20; ++trial) {
    const Shape shape = testing::random_shape(random);
    const int ranks = static_cast<int>(testing::random_number(random, 2, 5));
    std::vector<Slice> slices;  // one rank has all of it, the others any part
    for (int r = 0; r < ranks; ++r)
      slices.push_back(r == trial % ranks ? Slice(shape) : testing::random_slice(random, shape));
    const std::vector<std::string> errors = on_ranks(ranks, [&](int rank) {
      const Variable w = counting(shape, slices[static_cast<size_t>(rank)]);
      EXPECT_EQ(gather(w).to_vector<float>(), numbers(shape));
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(Gather, PutsPartsAlongEachAxisTogether) {
  const Shape shape{6, 5, 4};
  for (int ranks : {2, 3, 4})
    for (int kind = 0; kind < 5; ++kind) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, kind " + std::to_string(kind));
      auto slice_of = [&](int rank) {
        if (kind < 3) return Slice::part(shape, kind, rank, ranks);
        if (kind == 3) return Slice::part(shape, 0, rank, ranks, 3);
        const int64_t all = shape.count();
        return Slice::range(shape, all * rank / ranks, all * (rank + 1) / ranks, {.order = {2, 0, 1}});
      };
      for (const std::string& error : on_ranks(ranks, [&](int rank) {
             EXPECT_EQ(gather(counting(shape, slice_of(rank))).to_vector<float>(), numbers(shape));
           }))
        EXPECT_EQ(error, "");
    }
}

TEST(Gather, NamesWhatIsNowhere) {
  const Shape shape{4, 3};
  const std::vector<std::string> errors =
      on_ranks(3, [&](int rank) { gather(counting(shape, Slice::part(shape, 0, rank == 2 ? 1 : 0, 4))); });
  expect_all(errors, "no rank has 6 of the 12 elements of w");
  expect_all(errors, "ranks 0, 1: [0:1, 0:3] of [4, 3]");
  expect_all(errors, "rank 2: [1:2, 0:3] of [4, 3]");
}

TEST(Gather, NamesReplicasThatDiffer) {
  const Shape shape{4, 3};
  expect_all(
      on_ranks(3,
               [&](int rank) { gather(counting(shape, Slice::part(shape, 0, rank / 2, 2), rank == 1 ? 1.0F : 0.0F)); }),
      "ranks 0 and 1 both have w ([0:2, 0:3] of [4, 3]), and their values differ");
  expect_all(on_ranks(2,
                      [&](int rank) {
                        gather(counting(shape, rank == 0 ? Slice(shape) : Slice::part(shape, 1, 0, 2), 2.0F * rank));
                      }),
             "parts of w that several ranks have differ");
}

TEST(Gather, RanksGatherTheSameVariable) {
  const std::vector<std::string> errors = on_ranks(2, [&](int rank) {
    const Shape shape{4 + rank, 3};
    gather(counting(shape, Slice(shape)));
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("all ranks gather the same variable"), std::string::npos);
}

TEST(Gather, ReplicasOfASliceBeginWithTheFirstOnes) {
  std::vector<std::byte> values[2];
  auto begin = [&](int rank, int part) {
    manual_seed(static_cast<uint64_t>(rank));
    nn::Linear model({.in = 4, .out = 6});
    model.to({DeviceType::cpu, static_cast<int16_t>(rank)});
    model.weight.keep_slice(Slice::part({6, 4}, 0, part, 2));
    distributed_model(model);
    values[rank] = model.weight.save_stored();
  };
  for (const std::string& error : on_ranks(2, [&](int rank) { begin(rank, 1); })) EXPECT_EQ(error, "");
  EXPECT_EQ(values[0].size(), 12 * sizeof(float));
  EXPECT_EQ(values[0], values[1]);
  expect_all(on_ranks(2, [&](int rank) { begin(rank, rank); }), "[3:6, 0:4] of [6, 4]");
}

TEST(Gather, AWholeVariableNeedsNoJob) {
  EXPECT_EQ(gather(counting({2, 2}, Slice({2, 2}))).to_vector<float>(), numbers({2, 2}));
}

}  // namespace
}  // namespace bonfire::fleet::gather_test
