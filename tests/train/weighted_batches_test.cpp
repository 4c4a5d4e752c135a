// Batches that count by their targets, with local SGD and with several batches an update: what the trainer does on two
// ranks is what is worked out here by hand, on one thread and in f64.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "bonfire/base/random.h"
#include "bonfire/data/loader.h"
#include "bonfire/graph/first_values.h"
#include "bonfire/nn/linear.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/parallel/sampler.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"

namespace bonfire::train::weighted_batches_test {
namespace {

using bonfire::testing::ScratchFolder;

constexpr int kRanks = 2;
constexpr int64_t kSamples = 64, kBatch = 4, kEpochs = 2;
constexpr double kRate = 0.2;
constexpr uint64_t kSeed = 3;

using Weights = std::array<double, 3>;
constexpr Weights kFirst{0.5, -0.25, 0.125};

struct Row {
  Weights x;
  double y;
  bool counts;
};
// Two of three count; how many of a batch do is chance.
Row row(int64_t index) {
  auto number = [index](uint64_t i) { return static_cast<double>(uniform_at(1, i, static_cast<uint64_t>(index))); };
  return {{number(0), number(1), number(2)}, number(3), index % 3 != 0};
}

// Labels are [y, whether it counts, index].
class Rows final : public data::Dataset {
 public:
  int64_t size() const override { return kSamples; }
  data::Sample get(int64_t index) const override {
    const Row one = row(index);
    const std::array input{static_cast<float>(one.x[0]), static_cast<float>(one.x[1]), static_cast<float>(one.x[2])};
    const std::array label{static_cast<float>(one.y), one.counts ? 1.0F : 0.0F, static_cast<float>(index)};
    auto array = [](const std::array<float, 3>& numbers) {
      const auto bytes = std::as_bytes(std::span(numbers));
      return data::Array{DType::f32, {3}, {bytes.begin(), bytes.end()}};
    };
    return {array(input), array(label), {}};
  }
};

class Net : public nn::Callable<Net> {
 public:
  Net() : Callable("Net"), fc_(register_module("fc", nn::Linear({.in = 3, .out = 1, .bias = false}))) {
    fc_.weight.set_first_values(first_values([](int64_t i) { return kFirst.at(static_cast<size_t>(i)); }));
  }
  Tensor forward(const Tensor& x) const { return fc_(x); }

 private:
  nn::Linear fc_;
};

Tensor counting(const Tensor& label) { return slice(label, 1, 1, 2); }

struct Way {
  int64_t batches_an_update = 1;
  bool local = false;       // averages every other update
  int64_t warm_epochs = 0;  // before that
};

Weights trained(const Way& way) {
  ScratchFolder folder;
  Course course;
  const std::vector<std::string> errors = as_ranks(kRanks, [&](int rank) {
    std::vector<std::string> settings{"output=" + (folder / "runs").string(),
                                      fmt::format("place=cpu:{}", rank),
                                      fmt::format("batch_size={}", kBatch),
                                      fmt::format("epochs={}", kEpochs),
                                      fmt::format("lr={}", kRate),
                                      fmt::format("seed={}", kSeed),
                                      fmt::format("strategy.accumulate_steps={}", way.batches_an_update),
                                      "optimizer=sgd"};
    if (way.local)
      settings.insert(settings.end(), {"strategy.use_local_sgd=true", "strategy.local_sgd_steps=2",
                                       fmt::format("strategy.local_sgd_is_warm_steps={}", way.warm_epochs)});
    const auto task = make_task({.name = "regression",
                                 .loss =
                                     [](const Outputs& outputs, const Tensor& label) {
                                       const Tensor error = square(outputs[0] - slice(label, 1, 0, 1));
                                       return sum(error * counting(label)) / maximum(sum(counting(label)), 1.0);
                                     },
                                 .targets = [](const Tensor& label) { return sum(counting(label)).to(DType::i64); }});
    Trainer trainer(default_config(settings), Net(), task);
    trainer.add(std::make_unique<Witness>(course, -1));
    trainer.fit(std::make_shared<Rows>(), std::make_shared<Rows>());
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  const std::vector<std::byte> bytes =
      open_tensors(weights_file(course.end.checkpoint)).read("fc.weight", Slice({1, 3}));
  const auto* found = reinterpret_cast<const float*>(bytes.data());
  return {found[0], found[1], found[2]};
}

// The rows of a batch.
using Batch = std::vector<Row>;
// [rank][batch], of all epochs: which are dealt to whom is the loader's business.
std::array<std::vector<Batch>, kRanks> dealt() {
  std::array<std::vector<Batch>, kRanks> all;
  as_ranks(kRanks, [&](int rank) {
    data::DataLoader loader(std::make_shared<Rows>(), {.batch_size = kBatch,
                                                       .sampler = fleet::sampler(),
                                                       .shuffle = true,
                                                       .drop_last = true,
                                                       .seed = kSeed,
                                                       .device = {DeviceType::cpu, static_cast<int16_t>(rank)}});
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch)
      for (const auto& [input, label] : loader.epoch(epoch)) {
        Batch& batch = all[static_cast<size_t>(rank)].emplace_back();
        const std::vector<float> numbers = label.to_vector<float>();
        for (size_t i = 0; i < numbers.size(); i += 3) batch.push_back(row(static_cast<int64_t>(numbers[i + 2])));
      }
  });
  return all;
}

// Of the mean over all rows that count.
Weights gradient(const std::vector<Batch>& batches, const Weights& w) {
  Weights sum{};
  double targets = 0;
  for (const Batch& batch : batches)
    for (const Row& one : batch) {
      if (!one.counts) continue;
      ++targets;
      double error = -one.y;
      for (size_t i = 0; i < w.size(); ++i) error += one.x[i] * w[i];
      for (size_t i = 0; i < w.size(); ++i) sum[i] += 2 * error * one.x[i];
    }
  for (double& number : sum) number /= std::max(targets, 1.0);
  return sum;
}

Weights worked_out(const Way& way) {
  const std::array<std::vector<Batch>, kRanks> all = dealt();
  const auto size = static_cast<size_t>(way.batches_an_update), updates = all[0].size() / size;
  std::array<Weights, kRanks> w{kFirst, kFirst};
  auto average = [&w] {
    for (size_t i = 0; i < kFirst.size(); ++i) w[0][i] = w[1][i] = (w[0][i] + w[1][i]) / 2;
  };
  size_t own_updates = 0;
  for (size_t update = 0; update < updates; ++update) {
    const size_t first = update * size;
    const bool alone = way.local && update * kEpochs / updates >= static_cast<size_t>(way.warm_epochs);
    std::array<std::vector<Batch>, kRanks> own;
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (size_t i = 0; i < size; ++i) own[rank].push_back(all[rank][first + i]);
    std::vector<Batch> together = own[0];
    together.insert(together.end(), own[1].begin(), own[1].end());
    for (size_t rank = 0; rank < kRanks; ++rank) {
      const Weights change = gradient(alone ? own[rank] : together, w[rank]);
      for (size_t i = 0; i < change.size(); ++i) w[rank][i] -= kRate * change[i];
    }
    if (alone && ++own_updates % 2 == 0) average();
  }
  average();  // what is saved is
  return w[0];
}

void expect_as_worked_out(const Way& way) {
  const Weights found = trained(way), expected = worked_out(way);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
    EXPECT_GT(std::abs(found[i] - kFirst[i]), 1e-2) << i;
  }
}

TEST(WeightedBatches, OfAllRanksCountByTheirTargets) {
  for (int64_t batches : {1, 2}) expect_as_worked_out({.batches_an_update = batches});
}

TEST(WeightedBatches, OfRanksThatTrainOnTheirOwnCountByTheirTargets) {
  for (int64_t batches : {1, 2})
    for (int64_t warm : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} an update, {} epochs together", batches, warm));
      expect_as_worked_out({.batches_an_update = batches, .local = true, .warm_epochs = warm});
    }
}

// Or the test above could not fail.
TEST(WeightedBatches, ThatCountAlikeWouldGiveOtherWeights) {
  const std::array<std::vector<Batch>, kRanks> all = dealt();
  bool uneven = false;
  for (size_t i = 0; i + 1 < all[0].size(); i += 2) {
    auto targets = [](const Batch& batch) {
      return std::count_if(batch.begin(), batch.end(), [](const Row& one) { return one.counts; });
    };
    uneven |= targets(all[0][i]) != targets(all[0][i + 1]);
    EXPECT_GT(targets(all[0][i]), 0);
  }
  EXPECT_TRUE(uneven);
}

}  // namespace
}  // namespace bonfire::train::weighted_batches_test
