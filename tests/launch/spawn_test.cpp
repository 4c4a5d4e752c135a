#include "bonfire/launch/spawn.h"

#include <gtest/gtest.h>

#include "tests/launch/launched.h"
#include "tests/support/expect_error.h"

namespace bonfire::fleet::spawn_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::count;
using testing::expect_mentions;
using testing::program_beside;

struct Spawning : ChildProcess {
  explicit Spawning(const std::string& what) : ChildProcess({program_beside("spawn_program"), what}, clean()) {}
};

TEST(Spawn, EachCallRunsItsBodyInAsManyRanks) {
  Spawning program("sum");
  EXPECT_EQ(program.wait(), 0) << program.output();
  for (const char* line : {"rank 0 of 2: sum 3", "rank 1 of 2: sum 3", "rank 0 of 3: sum 6", "rank 1 of 3: sum 6",
                           "rank 2 of 3: sum 6", "done"})
    EXPECT_EQ(count(program.output(), line), 1u) << line << " in\n" << program.output();
  EXPECT_EQ(count(program.output(), "between"), 1u + 3u);  // by the ranks of the second call on their way there
}

TEST(Spawn, OneRankIsTheProcessItself) {
  Spawning program("alone");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "rank 0 of 1: sum 1\n");
}

TEST(Spawn, ARankThatFailsIsNamedAndTheCallThrows) {
  Spawning program("fail");
  EXPECT_EQ(program.wait(), 3);
  expect_mentions(program.output(),
                  {"[rank 1] rank 1 does not like this", "rank 1 (process ", "ended with exit status 1",
                   "[fleet] a rank failed with exit status 1; see above which, and why"});
}

TEST(Spawn, LeavesTheProgramsOwnChildrenAlone) {
  Spawning program("children");
  EXPECT_EQ(program.wait(), 0) << program.output();
  expect_mentions(program.output(),
                  {"rank 0 of 2: sum 3", "rank 1 of 2: sum 3", "the first child lives\n",
                   "the second child ended with 7, and the handler was called\n", "the program adopts nobody\n"});
  Spawning ignoring("ignoring");
  EXPECT_EQ(ignoring.wait(), 0) << ignoring.output();
  expect_mentions(ignoring.output(), {"rank 0 of 2: sum 3", "rank 1 of 2: sum 3", "the first child lives\n"});
}

TEST(Spawn, ComesBeforeAnythingIsComputed) {
  Spawning program("late");
  EXPECT_EQ(program.wait(), 3);
  expect_mentions(program.output(), {"[fleet] spawn() comes before anything is computed: this process has "});
}

TEST(Spawn, ARankStartsNoRanks) {
  Spawning program("inner");
  EXPECT_EQ(program.wait(), 3);
  expect_mentions(program.output(), {"[fleet] spawn() in a process that is rank 0 of 2 already"});
}

TEST(Spawn, FewerThanOneRankIsRefused) {
  EXPECT_ERROR(spawn([] {}, 0), ConfigError, "[fleet] spawn() of 0 ranks, expected at least 1");
}

}  // namespace
}  // namespace bonfire::fleet::spawn_test
