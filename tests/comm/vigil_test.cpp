#include "bonfire/comm/vigil.h"

#include <gtest/gtest.h>

namespace bonfire::comm::vigil_test {
namespace {

using namespace std::chrono_literals;

// Ranks 0, 1 and 2 beat every second of [begin, end) but for those left out; looks come every half second.
class VigilTest : public ::testing::Test {
 protected:
  std::vector<int> pass(int begin, int end, const std::vector<int>& beating) {
    std::vector<int> frozen;
    for (int second = begin; second < end; ++second) {
      for (int rank : beating) vigil_.hear({.rank = rank, .name = "rank", .doing = "step 1"}, at(second));
      for (auto half : {0ms, 500ms})
        for (const LifeSign& rank : vigil_.look(at(second) + half)) frozen.push_back(rank.rank);
    }
    return frozen;
  }
  static Vigil::Clock::time_point at(int second) {
    return Vigil::Clock::time_point{} + 1h + std::chrono::seconds(second);
  }

  Vigil vigil_{8s};
};

TEST_F(VigilTest, ASilentRankIsFrozenAfterTheSilenceAndNotBefore) {
  EXPECT_EQ(pass(0, 10, {0, 1, 2}), std::vector<int>{});
  EXPECT_EQ(pass(10, 17, {0, 2}), std::vector<int>{});
  EXPECT_EQ(pass(17, 20, {0, 2}), std::vector<int>{1});
  ASSERT_EQ(vigil_.frozen().size(), 1u);
  EXPECT_EQ(vigil_.frozen()[0].rank, 1);
  EXPECT_EQ(vigil_.frozen()[0].doing, "step 1");
}

TEST_F(VigilTest, ItStaysFrozenWhateverItSaysLater) {
  pass(0, 1, {0, 1});
  pass(1, 12, {0});
  EXPECT_EQ(pass(12, 14, {0, 1}), std::vector<int>{});
  EXPECT_EQ(vigil_.frozen().size(), 1u);
}

TEST_F(VigilTest, WhoSaysFarewellIsNotMissed) {
  pass(0, 2, {0, 1});
  vigil_.forget(1);
  EXPECT_EQ(pass(2, 30, {0}), std::vector<int>{});
}

TEST_F(VigilTest, TimeInWhichNobodyLookedDoesNotCount) {
  pass(0, 5, {0, 1});
  EXPECT_EQ(pass(100, 101, {}), std::vector<int>{});  // the looker was frozen, maybe all were
  EXPECT_EQ(pass(101, 110, {0}), std::vector<int>{1});
}

TEST_F(VigilTest, TimeInWhichNothingCameFromTheWholeHostDoesNotCount) {
  auto second = [&](int number, bool host, bool rank) {
    if (host) vigil_.hear_host(1, at(number), 0ms);
    if (rank) vigil_.hear({.rank = 5, .name = "rank", .doing = "step 1", .host = 1}, at(number));
    return vigil_.look(at(number)).size() + vigil_.look(at(number) + 500ms).size();
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

TEST_F(VigilTest, AHostHasEndedWhenItsLastConnectionBreaksOff) {
  vigil_.host_stays(1, at(0));
  vigil_.host_stays(1, at(1));
  vigil_.host_ended(1, at(2));
  EXPECT_FALSE(vigil_.hosts().at(1).ended);
  vigil_.host_ended(1, at(3));
  EXPECT_EQ(vigil_.hosts().at(1).ended, at(3));
  vigil_.host_stays(1, at(4));
  EXPECT_FALSE(vigil_.hosts().at(1).ended);
}

TEST_F(VigilTest, AllOfThemMayFreeze) {
  pass(0, 1, {0, 1});
  EXPECT_EQ(pass(1, 10, {}), (std::vector<int>{0, 1}));
}

TEST_F(VigilTest, CanBeSwitchedOff) {
  vigil_ = Vigil{0s};
  pass(0, 1, {0, 1});
  EXPECT_EQ(pass(1, 100, {0}), std::vector<int>{});
}

}  // namespace
}  // namespace bonfire::comm::vigil_test
