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
