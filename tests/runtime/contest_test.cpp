#include "bonfire/runtime/contest.h"

#include <gtest/gtest.h>

namespace bonfire::runtime::contest_test {
namespace {

constexpr double kMillisecond = 1e6;

// In most of its runs others have what the first kernel needs: its least time is the best, its average is not.
TEST(Contest, AnAlgorithmThatIsOftenDisturbedLosesToASteadyOne) {
  Slowness slowness;
  std::vector<double> expected;
  for (int node = 0, runs = 0; node < 12; ++node) {
    Contest contest({"often_disturbed", "never_disturbed"}, slowness);
    for (int round = 0; round < 2; ++round) {
      contest.note(0, (++runs % 3 == 0 ? 8 : 24) * kMillisecond);
      contest.note(1, 12 * kMillisecond);
    }
    contest.remember();
    expected = contest.expected_times();
  }
  EXPECT_LT(expected[1], expected[0]);
  EXPECT_DOUBLE_EQ(expected[1], 12 * kMillisecond);
}

TEST(Contest, TheQuickestOfEachAlgorithmThatMayStillWinAreLeaders) {
  Slowness slowness;
  Contest contest({"a", "a", "b", "c"}, slowness);
  const double milliseconds[] = {12, 10, 20, 40};
  for (size_t i = 0; i < 4; ++i) contest.note(i, milliseconds[i] * kMillisecond);
  EXPECT_EQ(contest.leaders(), (std::vector<size_t>{1, 2}));
  // Once b is known to be steady, twice the time of the best is too much.
  slowness.note("b", 10, 10);
  EXPECT_EQ(contest.leaders(), (std::vector<size_t>{1}));
}

TEST(Contest, SingleRunsTeachNothing) {
  Slowness slowness;
  Contest contest({"a", "b"}, slowness);
  contest.note(0, 1 * kMillisecond);
  contest.note(1, 2 * kMillisecond);
  contest.note(1, 4 * kMillisecond);
  contest.remember();
  EXPECT_EQ(slowness.of("a"), 1);
  EXPECT_GT(slowness.of("b"), 1);
}

TEST(Contest, AnAlgorithmThatIsFarBehindIsSoInAnyLayout) {
  Slowness slowness;
  Contest contest({"a", "b", "b", "a"}, slowness);
  contest.note(0, 1 * kMillisecond);
  contest.note(1, 2 * kMillisecond);
  EXPECT_TRUE(contest.follows_another(2));
  EXPECT_EQ(contest.times()[2], 2 * kMillisecond);
  EXPECT_FALSE(contest.follows_another(3));
}

}  // namespace
}  // namespace bonfire::runtime::contest_test
