// accumulate_steps from C++: K small batches train as one large one does, in every way in which a loop can be written.
#include "bonfire/parallel/strategies/accumulation.h"

#include <gtest/gtest.h>

#include <thread>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::accumulation_test {
namespace {

constexpr int64_t kBatch = 48, kFeatures = 6, kUpdates = 5;

struct Loop {
  bool compiled = false;
  bool clears_first = false;  // before backward(), as PyTorch's users do
  bool clips = false;
  bool momentum = false;
};

Tensor rows(int64_t update, int64_t first, int64_t count, Device device) {
  std::vector<float> numbers(static_cast<size_t>(count * kFeatures));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = normal_at(3, static_cast<uint64_t>(update), static_cast<size_t>(first * kFeatures) + i);
  return Tensor::from<float>(numbers, {count, kFeatures}, device);
}

// The weights after kUpdates updates by `batches` batches each, whose samples are shared out between the ranks.
std::vector<float> weights_after(int64_t batches, const Loop& loop, Device device,
                                 const DistributedStrategy& strategy) {
  manual_seed(5);
  nn::Linear model({.in = kFeatures, .out = 3});
  model.to(device);
  model = fleet::distributed_model(model);
  const optim::Optimizer made =
      loop.momentum ? optim::Optimizer(optim::Momentum(model.parameters(), {.lr = 0.1, .momentum = 0.9}))
                    : optim::Optimizer(optim::Adam(model.parameters(), {.lr = 0.01}));
  optim::Optimizer optimizer = fleet::distributed_optimizer(made, strategy);
  auto step = [&](const Tensor& x) {
    if (loop.clears_first) optimizer.clear_grad();
    Tensor loss = mean(square(model(x)));
    loss.backward();
    if (loop.clips) optim::clip_grad_norm(optimizer.parameters(), 0.05);
    optimizer.step();
    if (!loop.clears_first) optimizer.clear_grad();
    return loss;
  };
  auto compiled = compile(step);
  const int64_t each = kBatch / batches / fleet::world_size();
  for (int64_t update = 0; update < kUpdates; ++update)
    for (int64_t batch = 0; batch < batches; ++batch) {
      const Tensor x = rows(update, (batch * fleet::world_size() + fleet::rank()) * each, each, device);
      loop.compiled ? compiled(x) : step(x);
    }
  std::vector<float> all = model.parameters()[0].value().to_vector<float>();
  for (float bias : model.parameters()[1].value().to_vector<float>()) all.push_back(bias);
  return all;
}

std::vector<float> alone(int64_t batches, const Loop& loop, int64_t accumulate_steps) {
  fleet::join(nullptr);
  std::vector<float> weights = weights_after(batches, loop, {}, {.accumulate_steps = accumulate_steps});
  fleet::leave();
  return weights;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << what << ", weight " << i;
}

std::vector<Loop> every_loop() {
  std::vector<Loop> all;
  for (int i = 0; i < 16; ++i) all.push_back({(i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0});
  return all;
}

std::string text_of(const Loop& loop, int64_t batches) {
  return fmt::format("{} batches, compiled {}, clears first {}, clips {}, momentum {}", batches, loop.compiled,
                     loop.clears_first, loop.clips, loop.momentum);
}

TEST(Accumulation, OfSmallBatchesIsOneLargeOne) {
  for (const Loop& loop : every_loop()) {
    const std::vector<float> expected = alone(1, loop, 1);
    for (int64_t batches : {2, 3, 4, 8}) expect_near(alone(batches, loop, batches), expected, text_of(loop, batches));
  }
}

TEST(Accumulation, OnTwoRanksIsOneLargeBatch) {
  for (const Loop& loop : every_loop())
    for (int64_t batches : {2, 3, 4, 8}) {
      const std::vector<float> expected = alone(1, loop, 1);
      std::vector<std::shared_ptr<comm::Group>> groups = comm::local_groups(2);
      std::vector<std::vector<float>> found(2);
      std::vector<std::thread> ranks;
      for (int r = 0; r < 2; ++r)
        ranks.emplace_back([&, r] {
          fleet::join(groups[static_cast<size_t>(r)]);
          const Device device{DeviceType::cpu, static_cast<int16_t>(r)};
          found[static_cast<size_t>(r)] = weights_after(batches, loop, device, {.accumulate_steps = batches});
          fleet::leave();
        });
      for (std::thread& rank : ranks) rank.join();
      EXPECT_EQ(found[0], found[1]) << text_of(loop, batches);
      expect_near(found[0], expected, text_of(loop, batches));
    }
}

TEST(Accumulation, OfOtherNumbersOnOtherRanksIsRefusedOnAll) {
  std::vector<std::shared_ptr<comm::Group>> groups = comm::local_groups(2);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      fleet::join(groups[static_cast<size_t>(r)]);
      EXPECT_ERROR(weights_after(2, {}, {DeviceType::cpu, static_cast<int16_t>(r)}, {.accumulate_steps = 2 + r}),
                   ConfigError, "accumulate_steps");
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST(Accumulation, EndsWithTheJobAndWithAStrategyWithoutIt) {
  const Loop loop;
  const std::vector<float> expected = alone(1, loop, 1);
  alone(4, loop, 4);
  expect_near(alone(1, loop, 1), expected, "after a job that accumulated");
  fleet::join(nullptr);
  nn::Linear model({.in = 2, .out = 2});
  optim::SGD optimizer(model.parameters(), {.lr = 1});
  fleet::distributed_optimizer(optimizer, {.accumulate_steps = 3});
  fleet::distributed_optimizer(optimizer);
  const float before = model.parameters()[1].value().to_vector<float>()[0];
  sum(model(ones({1, 2}, DType::f32))).backward();
  optimizer.step();
  EXPECT_EQ(model.parameters()[1].value().to_vector<float>()[0], before - 1);
  fleet::leave();
}

TEST(Accumulation, WithSeveralOptimizersIsRefused) {
  fleet::join(nullptr);
  nn::Linear a({.in = 2, .out = 2}), b({.in = 2, .out = 2});
  fleet::distributed_optimizer(optim::SGD(a.parameters(), {.lr = 1}), {.accumulate_steps = 2});
  EXPECT_ERROR(fleet::distributed_optimizer(optim::SGD(b.parameters(), {.lr = 1})), ConfigError,
               "accumulate_steps goes with one optimizer");
  fleet::leave();
  fleet::join(nullptr);
  fleet::distributed_optimizer(optim::SGD(a.parameters(), {.lr = 1}));
  EXPECT_ERROR(fleet::distributed_optimizer(optim::SGD(b.parameters(), {.lr = 1}), {.accumulate_steps = 2}),
               ConfigError, "accumulate_steps goes with one optimizer");
  fleet::leave();
}

TEST(DistributedWhile, EndsWithAllThatItsStrategyDoes) {
  const int64_t released = runtime::release_frequency();
  nn::Linear model({.in = 2, .out = 2});
  optim::SGD optimizer(model.parameters(), {.lr = 1});
  const float before = model.parameters()[1].value().to_vector<float>()[0];
  auto train = [&] {
    sum(model(ones({1, 2}, DType::f32))).backward();
    optimizer.step();
    return before - model.parameters()[1].value().to_vector<float>()[0];
  };
  {
    const fleet::detail::DistributedWhile distributed(
        optimizer, {.num_iteration_per_drop_scope = 7, .fuse_bn_act_ops = false, .accumulate_steps = 3});
    EXPECT_EQ(train(), 0);
    EXPECT_EQ(runtime::release_frequency(), 7);
    EXPECT_FALSE(StepContext::current().options.fuse_bn_act_ops);
    EXPECT_NE(fleet::accumulation_of_job(), nullptr);
  }
  EXPECT_EQ(fleet::accumulation_of_job(), nullptr);
  EXPECT_EQ(runtime::release_frequency(), released);
  EXPECT_TRUE(StepContext::current().options.fuse_bn_act_ops);
  optimizer.clear_grad();
  EXPECT_FLOAT_EQ(train(), 1);
  EXPECT_ERROR(fleet::distributed_optimizer(optimizer), ConfigError, "comes before fleet::init()");
}

TEST(DistributedWhile, OfARefusedStrategyLeavesNothing) {
  nn::Linear model({.in = 2, .out = 2});
  const optim::SGD optimizer(model.parameters(), {.lr = 1});
  EXPECT_ERROR(fleet::detail::DistributedWhile(optimizer, {.accumulate_steps = 0}), ConfigError, "accumulate_steps");
  EXPECT_ERROR(fleet::distributed_optimizer(optimizer), ConfigError, "comes before fleet::init()");
}

TEST(DistributedWhile, OneAfterTheOtherInAJobDoNotMeet) {
  fleet::join(nullptr);
  for (int64_t batches : {2, 3}) {
    nn::Linear model({.in = 2, .out = 2});
    const optim::SGD optimizer(model.parameters(), {.lr = 1});
    const fleet::detail::DistributedWhile distributed(optimizer, {.accumulate_steps = batches});
    EXPECT_NE(fleet::accumulation_of_job(), nullptr);
  }
  EXPECT_EQ(fleet::accumulation_of_job(), nullptr);
  fleet::leave();
}

TEST(Threads, OfAStrategyAreRefusedOnceADeviceIsInUse) {
  fleet::join(nullptr);
  nn::Linear model({.in = 2, .out = 2});
  sum(model(ones({1, 2}, DType::f32))).item();
  const optim::SGD optimizer(model.parameters(), {.lr = 1});
  EXPECT_ERROR(fleet::distributed_optimizer(optimizer, {.num_threads = 7}), ConfigError,
               "num_threads is 7, but cpu:0 is in use already, with 1");
  EXPECT_ERROR(fleet::distributed_optimizer(optimizer, {.cpu_threads = 1000}), ConfigError, "threads");
  fleet::distributed_optimizer(optimizer, {.num_threads = 1});
  fleet::leave();
  cpu::set_ops_in_flight(0);
}

TEST(Threads, OfAStrategyAreThoseOfADeviceThatIsUsedLater) {
  fleet::join(nullptr);
  nn::Linear model({.in = 2, .out = 2});
  const Device device{DeviceType::cpu, 6};
  model.to(device);
  fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 1}), {.num_threads = 2});
  EXPECT_EQ(queue_of(device).steps_in_flight(), 2);
  fleet::leave();
  cpu::set_ops_in_flight(0);
}

}  // namespace
}  // namespace bonfire::accumulation_test
