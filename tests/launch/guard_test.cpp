#include "bonfire/launch/guard.h"

#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::guard_test {
namespace {

using testing::ChildProcess;

// A GPU's library starts some: a signal that came to one of them would end the program and kill what it guards.
TEST(Guard, RequestsAreHandedOnWhateverThreadsTheProgramHas) {
  for (int number : {SIGINT, SIGTERM}) {
    ChildProcess program({testing::program_beside("guard_program")}, {{"TSAN_OPTIONS", "die_after_fork=0"}});
    program.read_line("ready");
    program.signal(number);
    EXPECT_EQ(program.wait(), 5) << program.output();
    testing::expect_mentions(program.output(), {"asked to stop"});
  }
}

}  // namespace
}  // namespace bonfire::launch::guard_test
