#include "bonfire/comm/heartbeat_monitor.h"

#include <gtest/gtest.h>

namespace bonfire::comm::heartbeat_monitor_test {
namespace {

using namespace std::chrono_literals;

// Ranks 0, 1 and 2 beat every second of [begin, end) but for those left out; looks come every half second.
class HeartbeatMonitorTest : public ::testing::Test {
 protected:
  std::vector<int> pass(int begin, int end, const std::vector<int>& beating) {
    std::vector<int> frozen;
    for (int second = begin; second < end; ++second) {
      for (int rank : beating) monitor_.hear({.rank = rank, .name = "rank", .doing = "step 1"}, at(second));
      for (auto half : {0ms, 500ms})
        for (const LifeSign& rank : monitor_.look(at(second) + half)) frozen.push_back(rank.rank);
    }
    return frozen;
  }
  static HeartbeatMonitor::Clock::time_point at(int second) {
    return HeartbeatMonitor::Clock::time_point{} + 1h + std::chrono::seconds(second);
  }

  HeartbeatMonitor monitor_{8s};
};

TEST_F(HeartbeatMonitorTest, ASilentRankIsFrozenAfterTheSilenceAndNotBefore) {
  EXPECT_EQ(pass(0, 10, {0, 1, 2}), std::vector<int>{});
  EXPECT_EQ(pass(10, 17, {0, 2}), std::vector<int>{});
  EXPECT_EQ(pass(17, 20, {0, 2}), std::vector<int>{1});
  ASSERT_EQ(monitor_.frozen().size(), 1u);
  EXPECT_EQ(monitor_.frozen()[0].rank, 1);
  EXPECT_EQ(monitor_.frozen()[0].doing, "step 1");
}

TEST_F(HeartbeatMonitorTest, ItStaysFrozenWhateverItSaysLater) {
  pass(0, 1, {0, 1});
  pass(1, 12, {0});
  EXPECT_EQ(pass(12, 14, {0, 1}), std::vector<int>{});
  EXPECT_EQ(monitor_.frozen().size(), 1u);
}

TEST_F(HeartbeatMonitorTest, WhoSaysFarewellIsNotMissed) {
  pass(0, 2, {0, 1});
  monitor_.forget(1);
  EXPECT_EQ(pass(2, 30, {0}), std::vector<int>{});
}

TEST_F(HeartbeatMonitorTest, TimeInWhichNobodyLookedDoesNotCount) {
  pass(0, 5, {0, 1});
  EXPECT_EQ(pass(100, 101, {}), std::vector<int>{});  // the looker was frozen, maybe all were
  EXPECT_EQ(pass(101, 110, {0}), std::vector<int>{1});
}

TEST_F(HeartbeatMonitorTest, TimeInWhichNothingCameFromTheWholeHostDoesNotCount) {
  auto second = [&](int number, bool host, bool rank) {
    if (host) monitor_.hear_host(1, at(number), 0ms);
    if (rank) monitor_.hear({.rank = 5, .name = "rank", .doing = "step 1", .host = 1}, at(number));
    return monitor_.look(at(number)).size() + monitor_.look(at(number) + 500ms).size();
  };
  for (int number = 0; number < 5; ++number) EXPECT_EQ(second(number, true, true), 0u);
  for (int number = 5; number < 60; ++number) EXPECT_EQ(second(number, false, false), 0u);  // the link is out
  for (int number = 60; number < 65; ++number)
    EXPECT_EQ(second(number, true, false), 0u);  // its launcher is back first
  for (int number = 65; number < 70; ++number) EXPECT_EQ(second(number, true, true), 0u);
  size_t frozen = 0;
  for (int number = 70; number < 80; ++number) frozen += second(number, true, false);
  EXPECT_EQ(frozen, 1u);
}

TEST_F(HeartbeatMonitorTest, AHostHasEndedWhenItsLastConnectionBreaksOff) {
  monitor_.host_stays(1, at(0));
  monitor_.host_stays(1, at(1));
  monitor_.host_ended(1, at(2));
  EXPECT_FALSE(monitor_.hosts().at(1).ended);
  monitor_.host_ended(1, at(3));
  EXPECT_EQ(monitor_.hosts().at(1).ended, at(3));
  monitor_.host_stays(1, at(4));
  EXPECT_FALSE(monitor_.hosts().at(1).ended);
}

TEST_F(HeartbeatMonitorTest, AllOfThemMayFreeze) {
  pass(0, 1, {0, 1});
  EXPECT_EQ(pass(1, 10, {}), (std::vector<int>{0, 1}));
}

TEST_F(HeartbeatMonitorTest, CanBeSwitchedOff) {
  monitor_ = HeartbeatMonitor{0s};
  pass(0, 1, {0, 1});
  EXPECT_EQ(pass(1, 100, {0}), std::vector<int>{});
}

}  // namespace
}  // namespace bonfire::comm::heartbeat_monitor_test
