#include "bonfire/base/scheduling.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace bonfire::base::scheduling_test {
namespace {

TEST(Scheduling, AThreadThatWaitsAndThoseItStartsInterruptNobody) {
  if (sched_getscheduler(0) != SCHED_OTHER) GTEST_SKIP() << "the tests run under another policy";
  int inside = -1, after = -1;
  std::thread([&] {
    std::thread started;
    {
      const InterruptsNobody quiet;
      started = std::thread([&] { inside = sched_getscheduler(0); });
    }
    after = sched_getscheduler(0);
    started.join();
  }).join();
  EXPECT_EQ(inside, SCHED_BATCH);
  EXPECT_EQ(after, SCHED_OTHER);
}

TEST(Scheduling, AThreadWithAnotherPolicyKeepsIt) {
  int inside = -1;
  std::thread([&] {
    const sched_param priority{};
    ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &priority), 0);
    const InterruptsNobody quiet;
    inside = sched_getscheduler(0);
  }).join();
  EXPECT_EQ(inside, SCHED_IDLE);
}

}  // namespace
}  // namespace bonfire::base::scheduling_test
