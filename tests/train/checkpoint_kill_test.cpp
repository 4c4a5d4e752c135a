// A process that saves a checkpoint is killed at each of its system calls in turn: some whole checkpoint is there.

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/support/numbers.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::checkpoint_kill_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::numbers;
using bonfire::testing::ScratchFolder;

void save(const fs::path& folder, int64_t step, CheckpointContent content, int64_t keep) {
  save_checkpoint(folder, step, content, keep);
}

CheckpointContent content(float value) {
  return {.weights = nn::StateCopy({{"weight", numbers({value})}}), .optimizer = {}, .state = "{}"};
}

float saved_value(const fs::path& checkpoint) {
  Variable weight = numbers({0});
  nn::load_state_dict({{"weight", weight}}, weights_file(checkpoint));
  return weight.value().to_vector<float>()[0];
}

// A disk would take its time to sync, for each of some hundred kills.
class InMemory {
 public:
  InMemory() : before_(fs::temp_directory_path()) {
    if (fs::is_directory("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1);
  }
  ~InMemory() { setenv("TMPDIR", before_.c_str(), 1); }

 private:
  std::string before_;
};

enum class Ended { killed, itself, not_traced };

// Runs the action in a process of its own, which is killed before its system call number `call`.
Ended run_until(int call, const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    raise(SIGSTOP);
    action();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  for (int stops = 0; WIFSTOPPED(status); ++stops) {  // one at the beginning, then before and after each call
    if (stops == 2 * call - 1) kill(child, SIGKILL);
    if (stops < 2 * call - 1) ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    waitpid(child, &status, 0);
  }
  if (WIFSIGNALED(status)) return Ended::killed;
  return WEXITSTATUS(status) == 2 ? Ended::not_traced : Ended::itself;
}

// Prepares a folder with checkpoints of value 1, and saves one of value 2.
void expect_always_a_whole_one(int64_t before, int64_t now) {
  CheckpointContent next = content(2);  // made here: the child only writes
  int call = 1;
  for (Ended ended = Ended::killed; ended == Ended::killed; ++call) {
    InMemory memory;
    ScratchFolder folder;
    const fs::path all = folder / "checkpoints";
    save(all, before, content(1), 1);
    ended = run_until(call, [&] { save_checkpoint(all, now, next, 1); });
    if (ended == Ended::not_traced) GTEST_SKIP() << "may not trace a process of its own";
    std::optional<fs::path> found = newest_checkpoint(all);
    ASSERT_TRUE(found) << "killed at call " << call;
    const float value = saved_value(*found);
    EXPECT_TRUE(value == 1 || value == 2) << value;
    EXPECT_TRUE(ended == Ended::killed || value == 2) << value;
    sweep_leftovers(folder.path());
    found = newest_checkpoint(all);
    ASSERT_TRUE(found) << "killed at call " << call;
    EXPECT_EQ(saved_value(*found), value) << "killed at call " << call;
    save(all, now + 1, content(3), 1);  // the next one is not disturbed
    EXPECT_EQ(saved_value(all / checkpoint_name(now + 1)), 3);
  }
  EXPECT_GT(call, 50);
}

TEST(CheckpointKill, SavingTheSameStepAgainNeverLeavesNone) { expect_always_a_whole_one(3, 3); }
TEST(CheckpointKill, SavingANewStepNeverLeavesNone) { expect_always_a_whole_one(3, 4); }

}  // namespace
}  // namespace bonfire::train::checkpoint_kill_test
