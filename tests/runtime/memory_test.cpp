#include "bonfire/runtime/memory.h"

#include <gtest/gtest.h>

#include "bonfire/base/random.h"

namespace bonfire::runtime::memory_test {
namespace {

void expect_no_overlap(const std::vector<Interval>& intervals, const Placement& placement) {
  for (size_t a = 0; a < intervals.size(); ++a) {
    EXPECT_EQ(placement.offsets[a] % 256, 0U);
    EXPECT_LE(placement.offsets[a] + intervals[a].bytes, placement.total);
    for (size_t b = 0; b < a; ++b) {
      bool together = intervals[a].first <= intervals[b].last && intervals[b].first <= intervals[a].last;
      bool apart = placement.offsets[a] + intervals[a].bytes <= placement.offsets[b] ||
                   placement.offsets[b] + intervals[b].bytes <= placement.offsets[a];
      EXPECT_TRUE(!together || apart) << a << " and " << b;
    }
  }
}

TEST(MemoryPlan, ValuesThatAreNeverNeededTogetherShareBytes) {
  std::vector<Interval> chain;
  for (int i = 0; i < 100; ++i) chain.push_back({i, i + 1, 1024});
  Placement placement = place(chain);
  expect_no_overlap(chain, placement);
  EXPECT_EQ(placement.total, 2048U);
}

TEST(MemoryPlan, IsNearTheLowerBoundOnRandomLifetimes) {
  std::vector<Interval> intervals;
  for (uint64_t i = 0; i < 300; ++i) {
    int first = static_cast<int>(uniform_at(1, 0, i) * 200), length = static_cast<int>(uniform_at(1, 1, i) * 40);
    intervals.push_back({first, first + length, 1 + static_cast<size_t>(uniform_at(1, 2, i) * 100000)});
  }
  Placement placement = place(intervals);
  expect_no_overlap(intervals, placement);
  EXPECT_GE(placement.total, lower_bound(intervals));
  EXPECT_LE(static_cast<double>(placement.total), 1.2 * static_cast<double>(lower_bound(intervals)));
}

TEST(MemoryPlan, ApartMeansThatNoTwoShareBytes) {
  std::vector<Interval> chain;
  for (int i = 0; i < 10; ++i) chain.push_back({i, i, 100});
  Placement placement = place_apart(chain);
  for (Interval& interval : chain) interval = {0, 9, interval.bytes};  // as if all were needed at once
  expect_no_overlap(chain, placement);
  EXPECT_EQ(placement.total, 2560U);
}

TEST(MemoryPlan, NothingNeedsNothing) { EXPECT_EQ(place({}).total, 0U); }

}  // namespace
}  // namespace bonfire::runtime::memory_test
