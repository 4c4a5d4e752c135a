#include "bonfire/backend/cpu/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>

namespace bonfire::cpu::background_test {
namespace {

TEST(QueueBackground, LinesRunSideBySide) {
  std::latch both(2);
  Background background;
  for (int line : {0, 1}) background.start(line, {}, [&] { both.arrive_and_wait(); });  // one alone would never end
  background.wait_for_all();
  EXPECT_TRUE(both.try_wait());
}

TEST(QueueBackground, ALineRunsInOrder) {
  std::vector<int> order[2];
  Background background;
  for (int i = 0; i < 100; ++i) background.start(i % 2, {}, [&, i] { order[i % 2].push_back(i); });
  background.wait_for_all();
  for (int line : {0, 1})
    for (int i = 0; i < 50; ++i) ASSERT_EQ(order[line].at(static_cast<size_t>(i)), 2 * i + line);
}

TEST(QueueBackground, NoLineBeginsBeforeWhatIsForAllOfThem) {
  for (int trial = 0; trial < 100; ++trial) {
    std::atomic<bool> agreed{false};
    std::atomic<int> late{0};
    Background background;
    background.start(ProgramStep::kBeforeAllLines, {}, [&] {
      std::this_thread::yield();
      agreed = true;
    });
    for (int line : {2, 1, 0}) background.start(line, {}, [&] { late += agreed ? 1 : 0; });
    background.wait_for_all();
    ASSERT_EQ(late, 3);
  }
}

// The queue tells the others' groups, which ends what they wait for, and goes on when nothing is running any more.
TEST(QueueBackground, AFailureIsToldWhileOtherLinesStillRun) {
  Background background;
  std::promise<void> begun, told;
  std::atomic<bool> ended{false}, begun_later{false};
  background.start(0, {}, [&] {
    begun.set_value();
    told.get_future().wait();
    ended = true;
  });
  begun.get_future().wait();
  background.start(1, {}, [] { throw std::runtime_error("a peer is gone"); });
  try {
    background.wait_for_all();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a peer is gone");
  }
  EXPECT_FALSE(ended);
  told.set_value();
  background.finish_after_failure();
  EXPECT_TRUE(ended);
  EXPECT_TRUE(background.idle());
  background.start(0, {}, [&] { begun_later = true; });
  background.wait_for_all();
  EXPECT_TRUE(begun_later);
}

}  // namespace
}  // namespace bonfire::cpu::background_test
