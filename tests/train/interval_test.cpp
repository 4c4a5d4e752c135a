#include "bonfire/train/trainer/interval.h"

#include <gtest/gtest.h>

namespace bonfire::train::interval_test {
namespace {

using Unit = Interval::Unit;

TEST(Interval, IsInEpochsStepsOrMinutes) {
  EXPECT_EQ(parse_interval("2"), (Interval{2, Unit::epochs}));
  EXPECT_EQ(parse_interval("1 epoch"), (Interval{1, Unit::epochs}));
  EXPECT_EQ(parse_interval("500 steps"), (Interval{500, Unit::steps}));
  EXPECT_EQ(parse_interval("500steps"), (Interval{500, Unit::steps}));
  EXPECT_EQ(parse_interval("10 min"), (Interval{10, Unit::minutes}));
  EXPECT_EQ(parse_interval("0.5 minutes"), (Interval{0.5, Unit::minutes}));
  for (const char* text :
       {"", "0", "-1", "1.5", "0 min", "0.5 steps", "5 stops", "min", "10 min 5", "1e300", "nan min"})
    EXPECT_EQ(parse_interval(text), std::nullopt) << text;
  for (const char* text : {"2", "500 steps", "0.5 min"}) EXPECT_EQ(to_string(*parse_interval(text)), text);
}

TEST(Turn, ComesAtMultiplesOfStepsHoweverLateAfterAResumeToo) {
  Turn turn({4, Unit::steps}, 6, 0);  // resumed after 6 steps
  EXPECT_FALSE(turn.by_steps(7));
  EXPECT_TRUE(turn.by_steps(8));
  EXPECT_TRUE(turn.by_steps(9));  // an update ends later
  turn.done(9, 0);
  EXPECT_FALSE(turn.by_steps(11));
  EXPECT_TRUE(turn.by_steps(12));
  EXPECT_FALSE(turn.by_epochs(4) || turn.by_clock(1e9));
}

TEST(Turn, ComesByEpochsOrByTheClock) {
  Turn epochs({2, Unit::epochs}, 0, 0), clock({0.5, Unit::minutes}, 0, 100);
  EXPECT_FALSE(epochs.by_epochs(1) || epochs.by_steps(2) || epochs.by_clock(1e9));
  EXPECT_TRUE(epochs.by_epochs(2));
  EXPECT_FALSE(clock.by_clock(129) || clock.by_epochs(1) || clock.by_steps(1));
  EXPECT_TRUE(clock.by_clock(130));
  clock.done(7, 135);
  EXPECT_FALSE(clock.by_clock(160));
}

}  // namespace
}  // namespace bonfire::train::interval_test
