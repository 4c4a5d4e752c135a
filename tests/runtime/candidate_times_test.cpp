#include "bonfire/runtime/candidate_times.h"

#include <gtest/gtest.h>

namespace bonfire::runtime::candidate_times_test {
namespace {

constexpr double kMillisecond = 1e6;

// In most of its runs others have what the first kernel needs: its least time is the best, its average is not.
TEST(CandidateTimes, AnAlgorithmThatIsOftenDisturbedLosesToASteadyOne) {
  Slowness slowness;
  std::vector<double> expected;
  for (int node = 0, runs = 0; node < 12; ++node) {
    CandidateTimes times({"often_disturbed", "never_disturbed"}, slowness);
    for (int round = 0; round < 2; ++round) {
      times.note(0, (++runs % 3 == 0 ? 8 : 24) * kMillisecond);
      times.note(1, 12 * kMillisecond);
    }
    times.remember();
    expected = times.expected_times();
  }
  EXPECT_LT(expected[1], expected[0]);
  EXPECT_DOUBLE_EQ(expected[1], 12 * kMillisecond);
}

TEST(CandidateTimes, TheQuickestOfEachAlgorithmThatMayStillWinAreLeaders) {
  Slowness slowness;
  CandidateTimes times({"a", "a", "b", "c"}, slowness);
  const double milliseconds[] = {12, 10, 20, 40};
  for (size_t i = 0; i < 4; ++i) times.note(i, milliseconds[i] * kMillisecond);
  EXPECT_EQ(times.leaders(), (std::vector<size_t>{1, 2}));
  // Once b is known to be steady, twice the time of the best is too much.
  slowness.note("b", 10, 10);
  EXPECT_EQ(times.leaders(), (std::vector<size_t>{1}));
}

TEST(CandidateTimes, SingleRunsTeachNothing) {
  Slowness slowness;
  CandidateTimes times({"a", "b"}, slowness);
  times.note(0, 1 * kMillisecond);
  times.note(1, 2 * kMillisecond);
  times.note(1, 4 * kMillisecond);
  times.remember();
  EXPECT_EQ(slowness.of("a"), 1);
  EXPECT_GT(slowness.of("b"), 1);
}

TEST(CandidateTimes, AnAlgorithmThatIsFarBehindIsSoInAnyLayout) {
  Slowness slowness;
  CandidateTimes times({"a", "b", "b", "a"}, slowness);
  times.note(0, 1 * kMillisecond);
  times.note(1, 2 * kMillisecond);
  EXPECT_TRUE(times.follows_another(2));
  EXPECT_EQ(times.list()[2], 2 * kMillisecond);
  EXPECT_FALSE(times.follows_another(3));
}

}  // namespace
}  // namespace bonfire::runtime::candidate_times_test
