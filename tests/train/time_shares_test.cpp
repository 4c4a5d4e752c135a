#include "bonfire/train/report/time_shares.h"

#include <gtest/gtest.h>

namespace bonfire::train::time_shares_test {
namespace {

TEST(TimeShares, WhatTheDeviceWaitsForCounts) {
  TimeShares shares = shares_between({.wall = 5}, {.wall = 15, .computing = 4, .communicating = 6});
  EXPECT_DOUBLE_EQ(shares.communication_wait, 0.6);
  EXPECT_DOUBLE_EQ(shares.data_wait, 0);
}

TEST(TimeShares, WaitingOfTheLoopCountsOnlyWhileTheDeviceIsIdle) {
  TimeShares busy = shares_between({}, {.wall = 10, .computing = 10, .for_data = 3, .agreeing = 2});
  EXPECT_DOUBLE_EQ(busy.data_wait, 0);
  EXPECT_DOUBLE_EQ(busy.communication_wait, 0);
  TimeShares half = shares_between({}, {.wall = 10, .computing = 6, .communicating = 2, .for_data = 3, .agreeing = 1});
  EXPECT_DOUBLE_EQ(half.data_wait, 0.15);  // of 2 idle seconds three quarters
  EXPECT_DOUBLE_EQ(half.communication_wait, 0.25);
}

// A GPU without collectives: what the loop waits for is all that is known.
TEST(TimeShares, OfADeviceThatDoesNotMeasureTheLoopTells) {
  TimeShares shares = shares_between({.wall = 1, .for_data = 1}, {.wall = 11, .for_data = 4});
  EXPECT_DOUBLE_EQ(shares.data_wait, 0.3);
  EXPECT_DOUBLE_EQ(shares.communication_wait, 0);
}

}  // namespace
}  // namespace bonfire::train::time_shares_test
