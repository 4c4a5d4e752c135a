// Data parallel over placed models: each rank has devices of its own.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/parallel/placed.h"
#include "tests/support/expect_error.h"

namespace bonfire::placed_ranks_test {
namespace {

constexpr int64_t kBatch = 8, kWidth = 12;

class Net : public nn::Callable<Net> {
 public:
  Net() : Callable("Net") {}
  Tensor forward(const Tensor& x) const {
    const Tensor y = tanh(norm(body(x)));
    return left(y) + right(y);
  }
  nn::Linear body = register_module("body", nn::Linear({.in = kWidth, .out = 16}));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm({.shape = {16}}));
  nn::Linear left = register_module("left", nn::Linear({.in = 16, .out = 5}));
  nn::Linear right = register_module("right", nn::Linear({.in = 16, .out = 5}));
};

struct Batch {
  Tensor x, y;
};

// Of rank `rank`: its rows of the batch.
Batch batch_of(int64_t step, int64_t rank, int64_t world, Device device) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = rank; i < kBatch; i += world) {
    for (int64_t j = 0; j < kWidth; ++j)
      x.push_back(normal_at(3, static_cast<uint64_t>(step), static_cast<uint64_t>(i * kWidth + j)));
    y.push_back((i * 7 + step) % 5);
  }
  const auto rows = static_cast<int64_t>(y.size());
  return {Tensor::from<float>(x, {rows, kWidth}, device), Tensor::from<int64_t>(y, {rows}, device)};
}

struct Options {
  int64_t accumulate = 1, communicators = 1;
  double clip = 0;
  bool compiled = true;
};

std::vector<float> trained(int64_t rank, int64_t world, Device first, Device second, const Options& options) {
  manual_seed(3);
  Net net;
  net.to(first);
  net.right.to(second);
  const auto model = fleet::distributed_model(net);
  auto optimizer =
      fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.1, .momentum = 0.9}),
                                   {.nccl_comm_num = options.communicators, .accumulate_steps = options.accumulate});
  auto step = [&](const Tensor& x, const Tensor& y) {
    Tensor loss = cross_entropy(model(x), y);
    loss.backward();
    if (options.clip > 0) optim::clip_grad_norm(optimizer.parameters(), Scalar(options.clip));
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  };
  auto compiled = compile(step);
  for (int64_t i = 0; i < 6; ++i) {
    const Batch batch = batch_of(i, rank, world, first);
    (options.compiled ? compiled(batch.x, batch.y) : step(batch.x, batch.y)).item();
  }
  std::vector<float> all;
  for (const Parameter& parameter : model.parameters())
    for (float value : parameter.value().to_vector<float>()) all.push_back(value);
  return all;
}

Device cpu(int64_t index) { return {DeviceType::cpu, static_cast<int16_t>(index)}; }

// What each of two ranks has in the end.
std::vector<std::vector<float>> on_two_ranks(const Options& options) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::vector<float>> weights(2);
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        fleet::join(groups[r]);
        const auto rank = static_cast<int64_t>(r);
        weights[r] = trained(rank, 2, cpu(2 * rank), cpu(2 * rank + 1), options);
        fleet::leave();
      } catch (const Error& error) {
        errors[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, (std::vector<std::string>(2)));
  return weights;
}

TEST(PlacedRanks, TrainAsOneDeviceWithTheWholeBatch) {
  for (const Options& options : {Options{}, Options{.compiled = false}, Options{.communicators = 2},
                                 Options{.clip = 0.2}, Options{.accumulate = 2}}) {
    SCOPED_TRACE(fmt::format("accumulate {}, communicators {}, clip {}, compiled {}", options.accumulate,
                             options.communicators, options.clip, options.compiled));
    const std::vector<std::vector<float>> ranks = on_two_ranks(options);
    EXPECT_EQ(ranks[0], ranks[1]);
    fleet::join(nullptr);
    const std::vector<float> alone = trained(0, 1, cpu(0), cpu(0), options);
    fleet::leave();
    ASSERT_EQ(ranks[0].size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(ranks[0][i], alone[i], 1e-5);
  }
}

TEST(PlacedRanks, EachDeviceReducesItsOwnGradients) {
  on_two_ranks({});
  std::map<Device, int> reduced;
  for (const auto& plan : runtime::cached_plans())
    if (plan->waits_for_ranks)
      for (const runtime::PlanNote& note : plan->notes)
        if (note.node == "all_reduce") ++reduced[note.result.device];
  EXPECT_GT(reduced[cpu(0)], 0);
  EXPECT_GT(reduced[cpu(1)], 0);
}

TEST(PlacedRanks, OtherPlacementsOnOtherRanksAreRefused) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        fleet::join(groups[r]);
        const auto first = static_cast<int64_t>(2 * r);
        Net net;
        net.to(cpu(first));
        (r == 0 ? net.right : net.left).to(cpu(first + 1));
        fleet::distributed_model(net);
      } catch (const Error& error) {
        errors[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "on device 1 of 2", error);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "on device 2 of 2", error);
  }
}

}  // namespace
}  // namespace bonfire::placed_ranks_test
