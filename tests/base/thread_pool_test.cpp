#include "bonfire/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bonfire::thread_pool_test {
namespace {

class ThreadPoolOf : public ::testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOf, ::testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolOf, RunsEveryTaskOnce) {
  for (int64_t tasks : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
    pool_.run(tasks, [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
    for (std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolOf, WhatTasksWroteIsSeenAfterTheLoop) {
  std::vector<int> values(64);  // not atomic: TSan would see a missing order
  for (int round = 0; round < 200; ++round)
    pool_.run(64, [&](int64_t task) { values[static_cast<size_t>(task)] += round; });
  for (int value : values) EXPECT_EQ(value, 199 * 200 / 2);
}

TEST_P(ThreadPoolOf, RethrowsAnExceptionAndGoesOnWorking) {
  for (int round = 0; round < 20; ++round) {
    try {
      pool_.run(100, [&](int64_t task) {
        if (task % 10 == 3) throw std::runtime_error("task " + std::to_string(task % 10));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "task 3");
    }
    std::atomic<int> runs = 0;
    pool_.run(10, [&](int64_t) { ++runs; });
    EXPECT_EQ(runs, 10);
  }
}

TEST_P(ThreadPoolOf, AnInnerLoopRunsOnTheThreadThatAsksForIt) {
  std::atomic<int> runs = 0, strangers = 0;
  pool_.run(8, [&](int64_t) {
    std::thread::id outer = std::this_thread::get_id();
    pool_.run(8, [&](int64_t) {
      ++runs;
      if (std::this_thread::get_id() != outer) ++strangers;
    });
  });
  EXPECT_EQ(runs, 64);
  EXPECT_EQ(strangers, 0);
}

TEST_P(ThreadPoolOf, AnExceptionOfAnInnerLoopReachesTheCaller) {
  EXPECT_THROW(pool_.run(4, [&](int64_t) { pool_.run(4, [](int64_t) { throw std::runtime_error("inner"); }); }),
               std::runtime_error);
}

TEST_P(ThreadPoolOf, CallersFromSeveralThreadsTakeTurns) {
  std::atomic<int> runs = 0;
  auto call = [&] {
    for (int round = 0; round < 50; ++round) pool_.run(10, [&](int64_t) { ++runs; });
  };
  std::thread other(call), third(call);
  call();
  other.join();
  third.join();
  EXPECT_EQ(runs, 3 * 50 * 10);
}

using Ranges = std::set<std::pair<int64_t, int64_t>>;

Ranges ranges_of(ThreadPool& pool, int64_t count, int64_t grain) {
  std::mutex mutex;
  Ranges ranges;
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    std::lock_guard lock(mutex);
    ranges.insert({begin, end});
  });
  return ranges;
}

TEST_P(ThreadPoolOf, ParallelForCoversTheRangeInFewPieces) {
  for (int64_t count : {0, 1, 5, 64, 1001})
    for (int64_t grain : {0, 1, 16, 5000}) {
      Ranges ranges = ranges_of(pool_, count, grain);
      EXPECT_LE(ranges.size(), static_cast<size_t>(pool_.size()));
      int64_t at = 0;
      for (auto [begin, end] : ranges) {
        EXPECT_EQ(begin, at);
        EXPECT_GE(end - begin, std::min(grain, count));
        at = end;
      }
      EXPECT_EQ(at, count);
      EXPECT_EQ(ranges, ranges_of(pool_, count, grain)) << "the cut changed from one run to the next";
    }
}

TEST(ThreadPool, UsesItsWorkers) {
  ThreadPool pool(4);
  std::atomic<int> arrived = 0;
  // Each task waits for the other three: it ends only if four threads are in it at once.
  pool.run(4, [&](int64_t) {
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 4);
}

TEST(ThreadPool, FewerThanOneThreadMeansOne) {
  EXPECT_EQ(ThreadPool(0).size(), 1);
  EXPECT_EQ(ThreadPool(-3).size(), 1);
}

TEST(ThreadPool, EndsAtOnceWhenNeverUsed) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(3);
}

TEST(AvailableCores, IsAtLeastOneAndAtMostWhatTheMachineHas) {
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace bonfire::thread_pool_test
