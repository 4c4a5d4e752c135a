// Compiled steps of ranks: what a step was traced under does not stay for ever.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "tests/parallel/two_ranks.h"

namespace bonfire::compiled_reduction_test {
namespace {

using testing::on_two_ranks;
using testing::Outcome;

struct Rank {
  explicit Rank(Device device)
      : model(fleet::distributed_model([&] {
          nn::Linear made({.in = 2, .out = 1});
          made.to(device);
          return made;
        }())),
        optimizer(fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}))) {}

  nn::Linear model;
  optim::SGD optimizer;
};

// Each rank's rows are ten times the other's: means over the ranks are neither's own gradients.
Tensor rows(Device device) {
  const float scale = device.index == 0 ? 1 : 10;
  return Tensor::from<float>({scale, 2 * scale}, {1, 2}, device);
}

TEST(CompiledReduction, AStepTracedWithoutItReducesLater) {
  Outcome outcome;
  on_two_ranks(outcome, [](Device device) {
    Rank rank(device);
    auto backward = compile([&](const Tensor& x) { sum(rank.model(x)).backward(); });
    const Tensor x = rows(device);
    auto gradient = [&] { return rank.model.weight.grad().to_vector<float>(); };
    {
      fleet::WithoutReduction alone;
      backward(x);
    }
    EXPECT_EQ(gradient(), x.to_vector<float>());
    rank.optimizer.clear_grad();
    backward(x);
    EXPECT_EQ(gradient(), (std::vector<float>{5.5, 11}));
    rank.optimizer.clear_grad();
    {
      fleet::WithoutReduction alone;
      backward(x);
    }
    EXPECT_EQ(gradient(), x.to_vector<float>());
    backward(x);  // adds, and the sum is reduced
    EXPECT_EQ(gradient(), (std::vector<float>{11, 22}));
  });
  EXPECT_EQ(outcome.errors[0], "");
  EXPECT_EQ(outcome.errors[1], "");
}

TEST(CompiledReduction, AModelDistributedLaterIsReducedToo) {
  Outcome outcome;
  on_two_ranks(outcome, [](Device device) {
    nn::Linear plain({.in = 2, .out = 1});
    plain.to(device);
    auto backward = compile([&](const Tensor& x) { sum(plain(x)).backward(); });
    const Tensor x = rows(device);
    backward(x);
    EXPECT_EQ(plain.weight.grad().to_vector<float>(), x.to_vector<float>());
    plain.weight.clear_grad();
    plain.bias.clear_grad();
    fleet::distributed_model(plain);
    backward(x);
    EXPECT_EQ(plain.weight.grad().to_vector<float>(), (std::vector<float>{5.5, 11}));
  });
  EXPECT_EQ(outcome.errors[0], "");
  EXPECT_EQ(outcome.errors[1], "");
}

}  // namespace
}  // namespace bonfire::compiled_reduction_test
