#include "bonfire/comm/shared_word.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace bonfire::comm::shared_word_test {
namespace {

using namespace std::chrono_literals;

cpu_set_t own_processors() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  EXPECT_EQ(sched_getaffinity(0, sizeof processors, &processors), 0);
  return processors;
}

// Takes this thread to the first processor of these; it may leave it again.
void go_to_first_of(const cpu_set_t& processors) {
  cpu_set_t first;
  CPU_ZERO(&first);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++i)
    if (CPU_ISSET(i, &processors)) CPU_SET(i, &first);
  ASSERT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
  ASSERT_EQ(sched_setaffinity(0, sizeof processors, &processors), 0);
}

// Answers the other side `turns` times, and returns on which processors it has found itself.
cpu_set_t answer(SharedWord& theirs, SharedWord& own, uint32_t turns, bool first) {
  cpu_set_t seen;
  CPU_ZERO(&seen);
  Patience patience(50us);
  if (first) change_word(own, 1);
  for (uint32_t turn = 0; turn < turns; ++turn) {
    EXPECT_EQ(wait_for_change(theirs, turn, patience, [] { return std::exception_ptr(); }), turn + 1);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &seen);
    if (!first || turn + 1 < turns) change_word(own, turn + 1 + (first ? 1 : 0));
  }
  return seen;
}

TEST(SharedWordThreads, TwoThatShareAProcessorPartAndMayStillUseAll) {
  const cpu_set_t processors = own_processors();
  if (CPU_COUNT(&processors) < 2) GTEST_SKIP() << "there is one processor";
  SharedWord words[2] = {};
  cpu_set_t used[2], after[2];
  auto side = [&](size_t i) {
    go_to_first_of(processors);
    used[i] = answer(words[1 - i], words[i], 20'000, i == 0);
    after[i] = own_processors();
  };
  std::thread other(side, 1);
  side(0);
  other.join();
  CPU_OR(&used[0], &used[0], &used[1]);
  EXPECT_GE(CPU_COUNT(&used[0]), 2);
  for (const cpu_set_t& now : after) EXPECT_TRUE(CPU_EQUAL(&now, &processors));
}

TEST(SharedWordThreads, AWaitThatIsInVainSaysWhy) {
  SharedWord word = {};
  Patience patience(50us);
  EXPECT_THROW(wait_for_change(word, 0, patience,
                               [] { return std::make_exception_ptr(std::runtime_error("the peer is gone")); }),
               std::runtime_error);
}

}  // namespace
}  // namespace bonfire::comm::shared_word_test
