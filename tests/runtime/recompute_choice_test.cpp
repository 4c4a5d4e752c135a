#include "bonfire/runtime/recompute_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace bonfire::runtime::recompute_choice_test {
namespace {

constexpr size_t kLarge = 1000;

// A chain: node i makes value i of the one before, and the backward pass reads values last to first, each after the
// gradient of the next. Values of gradients are small.
StepModel chain(int length) {
  StepModel model;
  model.bytes.assign(static_cast<size_t>(length), kLarge);
  for (int i = 0; i < length; ++i)
    model.nodes.push_back({.reads = i == 0 ? std::vector<int>{} : std::vector<int>{i - 1},
                           .writes = {i},
                           .seconds = 1,
                           .may_repeat = true});
  for (int i = length - 1; i >= 0; --i) {
    model.bytes.push_back(1);
    std::vector<int> reads{i};
    if (i < length - 1) reads.push_back(static_cast<int>(model.bytes.size()) - 2);
    model.nodes.push_back(
        {.reads = reads, .writes = {static_cast<int>(model.bytes.size()) - 1}, .seconds = 2, .is_late = true});
  }
  return model;
}

// What the header says, straight from it: the bytes of each run are those of all values that are alive.
size_t peak_by_the_book(const StepModel& model, const Repeated& repeated) {
  const std::vector<int> runs = order_of_runs(model, repeated);
  const auto node_of = [&](int run) -> const ModelNode& {
    return model.nodes[static_cast<size_t>(run < 0 ? -1 - run : run)];
  };
  const auto writer = [&](int value, bool second) {
    for (size_t r = 0; r < runs.size(); ++r)
      if ((runs[r] < 0) == second && std::ranges::count(node_of(runs[r]).writes, value) > 0) return static_cast<int>(r);
    return -1;
  };
  size_t most = 0;
  for (int now = 0; now < static_cast<int>(runs.size()); ++now) {
    size_t alive = node_of(runs[static_cast<size_t>(now)]).workspace;
    for (int value = 0; value < static_cast<int>(model.bytes.size()); ++value)
      for (bool second : {false, true}) {
        const int first = writer(value, second);
        if (first < 0 || first > now) continue;
        int last = first;
        for (int r = 0; r < static_cast<int>(runs.size()); ++r) {
          const int run = runs[static_cast<size_t>(r)];
          const bool late = run < 0 || node_of(run).is_late;
          const bool reads_second = late && writer(value, true) >= 0;
          if (reads_second == second && std::ranges::count(node_of(run).reads, value) > 0) last = r;
        }
        if (now <= last) alive += model.bytes[static_cast<size_t>(value)];
      }
    most = std::max(most, alive);
  }
  return most;
}

StepModel drawn(std::mt19937& random) {
  const auto number = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  StepModel model;
  const int forward = number(1, 9), late = number(1, 9);
  for (int i = 0; i < forward + late; ++i) {
    ModelNode node{.reads = {}, .writes = {}};
    node.is_late = i >= forward;
    node.may_repeat = !node.is_late && number(0, 5) > 0;
    node.seconds = number(1, 9);
    node.workspace = static_cast<size_t>(number(0, 3) == 0 ? number(1, 50) : 0);
    const int values = static_cast<int>(model.bytes.size());
    for (int value = 0; value < values; ++value)
      if (number(0, 3) == 0) node.reads.push_back(value);
    for (int made = number(1, 2); made > 0; --made) {
      node.writes.push_back(static_cast<int>(model.bytes.size()));
      model.bytes.push_back(static_cast<size_t>(number(0, 6) == 0 ? 0 : number(1, 100)));
    }
    model.nodes.push_back(std::move(node));
  }
  return model;
}

TEST(RecomputeChoice, NeedsNothingWhereItFits) {
  const StepModel model = chain(6);
  const auto chosen = choose_repeated(model, peak_of(model, Repeated(model.nodes.size())));
  ASSERT_TRUE(chosen);
  EXPECT_EQ(std::ranges::count(*chosen, true), 0);
}

TEST(RecomputeChoice, RunsNodesAgainJustBeforeTheyAreRead) {
  const StepModel model = chain(3);
  Repeated repeated(model.nodes.size());
  repeated[1] = true;
  EXPECT_EQ(order_of_runs(model, repeated), (std::vector<int>{0, 1, 2, 3, -2, 4, 5}));
  repeated[2] = true;  // reads the second result of node 1, which comes first
  EXPECT_EQ(order_of_runs(model, repeated), (std::vector<int>{0, 1, 2, -2, -3, 3, 4, 5}));
}

TEST(RecomputeChoice, OfALongChainKeepsAboutItsRoot) {
  const StepModel model = chain(64);
  const size_t fewest = fewest_bytes(model);
  EXPECT_LE(fewest, 20 * kLarge) << "twice the root of 64 values, and what is being computed";
  const auto chosen = choose_repeated(model, 20 * kLarge);
  ASSERT_TRUE(chosen);
  EXPECT_LE(peak_of(model, *chosen), 20 * kLarge);
  EXPECT_LE(seconds_of_repeats(model, *chosen), 64);
}

TEST(RecomputeChoice, TakesWhatIsLargeAndQuick) {
  StepModel model = chain(8);
  model.nodes[2].seconds = 0.001;
  model.nodes[4].seconds = 0.001;
  const size_t all = peak_of(model, Repeated(model.nodes.size()));
  const auto chosen = choose_repeated(model, all - 2 * kLarge);
  ASSERT_TRUE(chosen);
  EXPECT_LT(seconds_of_repeats(model, *chosen), 1);
}

// The model's arithmetic against a slow one, and the choice against all choices there are.
TEST(RecomputeChoice, OfDrawnStepsHoldsItsBudget) {
  const unsigned seed = 20261119;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  double chosen_seconds = 0, least_seconds = 0;
  int found = 0, missed = 0;
  for (int round = 0; round < 300; ++round) {
    const StepModel model = drawn(random);
    const size_t all = peak_of(model, Repeated(model.nodes.size()));
    EXPECT_EQ(all, peak_by_the_book(model, Repeated(model.nodes.size())));
    std::vector<size_t> free;
    for (size_t n = 0; n < model.nodes.size(); ++n)
      if (model.nodes[n].may_repeat) free.push_back(n);
    const size_t budget = std::uniform_int_distribution<size_t>(all * 3 / 4, all)(random);
    double least = -1;
    for (unsigned bits = 0; bits < 1U << free.size(); ++bits) {
      Repeated repeated(model.nodes.size());
      for (size_t i = 0; i < free.size(); ++i) repeated[free[i]] = (bits >> i & 1U) != 0;
      const double seconds = seconds_of_repeats(model, repeated);
      if (peak_of(model, repeated) <= budget && (least < 0 || seconds < least)) least = seconds;
    }
    const auto chosen = choose_repeated(model, budget);
    if (chosen) {
      EXPECT_EQ(peak_of(model, *chosen), peak_by_the_book(model, *chosen)) << "round " << round;
      EXPECT_LE(peak_of(model, *chosen), budget) << "round " << round;
      ASSERT_GE(least, 0) << "round " << round;
      chosen_seconds += seconds_of_repeats(model, *chosen);
      least_seconds += least;
      ++found;
    } else if (least >= 0) {
      ++missed;
    }
  }
  EXPECT_GT(found, 60);
  EXPECT_LE(missed, found / 10) << "budgets that could have been held";
  EXPECT_LE(chosen_seconds, 1.3 * least_seconds);
}

TEST(RecomputeChoice, SaysTheFewestBytes) {
  const StepModel model = chain(16);
  const size_t fewest = fewest_bytes(model);
  EXPECT_TRUE(choose_repeated(model, fewest));
  EXPECT_FALSE(choose_repeated(model, fewest - fewest / 10));
}

}  // namespace
}  // namespace bonfire::runtime::recompute_choice_test
