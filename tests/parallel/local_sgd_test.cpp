// Local SGD over threads as ranks.
#include "bonfire/parallel/strategies/local_sgd.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <utility>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"
#include "tests/support/expect_error.h"

namespace bonfire::local_sgd_test {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kSamples = 8;  // of a rank and step

// Weights after each step, a row a rank.
using Weights = std::vector<std::vector<float>>;

struct Plan {
  DistributedStrategy strategy = {};
  int64_t steps = 9, steps_of_epoch = 3;
  int64_t rate_drops_at = -1;  // step
  bool average_at_end = false;
  bool compiled = false;
};

std::vector<float> weights_of(const nn::Linear& model) {
  std::vector<std::byte> bytes = model.parameters()[0].save();
  std::vector<float> weights(bytes.size() / sizeof(float));
  std::memcpy(weights.data(), bytes.data(), bytes.size());
  return weights;
}

Weights train(Device device, const Plan& plan) {
  manual_seed(5);
  nn::Linear plain({.in = 6, .out = 3});
  plain.to(device);
  nn::Linear model = fleet::distributed_model(plain);
  auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}), plan.strategy);
  auto step_of = [&](const Tensor& x, const Tensor& y) {
    Tensor loss = cross_entropy(model(x), y);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  };
  auto compiled = compile(step_of);
  Weights history;
  for (int64_t step = 0; step < plan.steps; ++step) {
    fleet::set_epoch(step / plan.steps_of_epoch);
    if (step == plan.rate_drops_at) optimizer.set_lr(0.01);
    std::vector<float> x(kSamples * 6);
    std::vector<int64_t> y(kSamples);
    for (size_t i = 0; i < x.size(); ++i) x[i] = normal_at(fleet::rank() + 1, static_cast<uint64_t>(step), i);
    for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int64_t>(i + static_cast<size_t>(fleet::rank())) % 3;
    const Tensor input = Tensor::from<float>(x, {kSamples, 6}, device);
    const Tensor label = Tensor::from<int64_t>(y, {kSamples}, device);
    plan.compiled ? compiled(input, label) : step_of(input, label);
    history.push_back(weights_of(model));
  }
  if (plan.average_at_end) {
    fleet::average();
    EXPECT_TRUE(fleet::averaged());
    history.push_back(weights_of(model));
  }
  return history;
}

// A history a rank.
std::vector<Weights> train_on_ranks(const Plan& plan) {
  auto groups = comm::local_groups(kRanks, {.timeout = std::chrono::seconds(60)});
  std::vector<Weights> histories(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      fleet::join(groups[static_cast<size_t>(r)]);
      histories[static_cast<size_t>(r)] = train({DeviceType::cpu, static_cast<int16_t>(r)}, plan);
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  return histories;
}

// For each step whether the ranks have the same bits after it: "=" or "x".
std::string agreement(const std::vector<Weights>& histories) {
  std::string text;
  for (size_t step = 0; step < histories[0].size(); ++step)
    text += histories[0][step] == histories[1][step] ? "=" : "x";
  return text;
}

TEST(DataParallel, LocalSgdAveragesEverySoManySteps) {
  auto histories = train_on_ranks({.strategy = {.use_local_sgd = true, .local_sgd_steps = 4}, .average_at_end = true});
  EXPECT_EQ(agreement(histories), "xxx=xxx=x=");
}

TEST(DataParallel, LocalSgdOfOneStepIsSynchronousTraining) {
  auto local = train_on_ranks({.strategy = {.use_local_sgd = true, .local_sgd_steps = 1}});
  auto synchronous = train_on_ranks({});
  EXPECT_EQ(agreement(local), "=========");
  for (size_t i = 0; i < local[0].back().size(); ++i) EXPECT_NEAR(local[0].back()[i], synchronous[0].back()[i], 1e-6F);
}

TEST(DataParallel, LocalSgdBeginsAfterItsWarmEpochs) {
  auto histories = train_on_ranks(
      {.strategy = {.use_local_sgd = true, .local_sgd_is_warm_steps = 1, .local_sgd_steps = 2}, .steps = 8});
  EXPECT_EQ(agreement(histories), "===x=x=x");
}

TEST(DataParallel, LocalSgdBeginsWhenTheRateDrops) {
  auto histories = train_on_ranks(
      {.strategy = {.use_local_sgd = true, .local_sgd_is_warm_steps = std::nullopt, .local_sgd_steps = 3},
       .rate_drops_at = 4});
  EXPECT_EQ(agreement(histories), "====xx=xx");
}

TEST(DataParallel, LocalSgdOfACompiledStepIsThatOfATracedOne) {
  for (const DistributedStrategy& strategy :
       {DistributedStrategy{.use_local_sgd = true, .local_sgd_steps = 3},
        DistributedStrategy{.use_local_sgd = true, .local_sgd_is_warm_steps = 1, .local_sgd_steps = 2},
        DistributedStrategy{.use_local_sgd = true, .local_sgd_is_warm_steps = std::nullopt, .local_sgd_steps = 3}}) {
    auto traced = train_on_ranks({.strategy = strategy, .rate_drops_at = 4});
    auto compiled = train_on_ranks({.strategy = strategy, .rate_drops_at = 4, .compiled = true});
    EXPECT_EQ(agreement(compiled), agreement(traced));
    for (size_t step = 0; step < traced[0].size(); ++step)
      for (size_t i = 0; i < traced[0][step].size(); ++i)
        EXPECT_NEAR(compiled[0][step][i], traced[0][step][i], 1e-6F) << "step " << step;
  }
}

TEST(LocalSgdCounting, RefusesNumbersThatCannotBe) {
  EXPECT_ERROR(LocalSgd({.local_sgd_steps = 0}), ConfigError, "local_sgd_steps is 0, expected at least 1");
  EXPECT_ERROR(LocalSgd({.local_sgd_is_warm_steps = -1}), ConfigError, "local_sgd_is_warm_steps is -1");
}

TEST(LocalSgdCounting, AWarmUpOfTheRateIsNoDrop) {
  LocalSgd local(DistributedStrategy{.local_sgd_is_warm_steps = std::nullopt, .local_sgd_steps = 2});
  local.change_rate(0.1, 0.01);  // no step was made at 0.1
  double rate = 0.01;
  for (double next : {0.05, 0.1}) {
    EXPECT_FALSE(local.ends_with_average());
    local.change_rate(std::exchange(rate, next), next);
    EXPECT_FALSE(local.local());
  }
  EXPECT_FALSE(local.ends_with_average());
  local.change_rate(0.1, 0.02);
  EXPECT_TRUE(local.local());
  EXPECT_TRUE(local.averaged());
  EXPECT_FALSE(local.ends_with_average());
  EXPECT_FALSE(local.averaged());
  EXPECT_TRUE(local.ends_with_average());
}

}  // namespace
}  // namespace bonfire::local_sgd_test
