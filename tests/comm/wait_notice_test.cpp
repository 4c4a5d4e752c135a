#include "bonfire/comm/wait_notice.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace bonfire::comm::wait_notice_test {
namespace {

using std::chrono::seconds;

class WaitNoticeTest : public ::testing::Test {
 protected:
  // What is on stderr after a look so many seconds after the beginning.
  std::string said(seconds waited) {
    ::testing::internal::CaptureStderr();
    notice_.look(
        [this] {
          ++asked_;
          return std::string("rank 0");
        },
        begun_ + waited);
    return ::testing::internal::GetCapturedStderr();
  }
  void expect_said(int waited) {
    const std::string line = said(seconds(waited)), end = fmt::format("rank 1 has waited {} s for rank 0\n", waited);
    EXPECT_TRUE(line.ends_with(end)) << "'" << line << "' after " << waited << " s";
  }
  void expect_silence(int waited) { EXPECT_EQ(said(seconds(waited)), "") << waited << " s"; }

  WaitNotice notice_{"rank 1"};
  WaitNotice::Clock::time_point begun_ = WaitNotice::Clock::now() + seconds(1000);
  int asked_ = 0;
};

TEST_F(WaitNoticeTest, SpeaksAfterFiveSecondsAndThenEveryThirty) {
  notice_.begin(begun_);
  EXPECT_EQ(notice_.next(), begun_ + seconds(5));
  for (int silent : {0, 4}) expect_silence(silent);
  expect_said(5);
  EXPECT_EQ(notice_.next(), begun_ + seconds(35));
  for (int silent : {5, 10, 34}) expect_silence(silent);
  expect_said(35);
  expect_silence(64);
  expect_said(70);  // whoever looks late is told when it looks
  EXPECT_EQ(notice_.next(), begun_ + seconds(100));
  EXPECT_EQ(asked_, 3);  // only when there was something to say
}

TEST_F(WaitNoticeTest, AnotherWaitBeginsAnew) {
  notice_.begin(begun_);
  expect_said(6);
  begun_ += seconds(20);
  notice_.begin(begun_);
  expect_silence(4);
  expect_said(5);
}

TEST(ListOfRanks, ReadsAsASentenceDoes) {
  EXPECT_EQ(list_of_ranks({2}), "rank 2");
  EXPECT_EQ(list_of_ranks({2, 3}), "ranks 2 and 3");
  EXPECT_EQ(list_of_ranks({0, 2, 3}), "ranks 0, 2 and 3");
}

}  // namespace
}  // namespace bonfire::comm::wait_notice_test
