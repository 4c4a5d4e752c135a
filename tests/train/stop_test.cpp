// Requests to stop, to the program itself in a process of its own.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/trainer/stop_signals.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/under_sanitizer.h"
#include "tests/train/digits.h"
#include "tests/train/program.h"

namespace bonfire::train::stop_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::Program;
using bonfire::testing::ScratchFolder;

std::vector<std::string> training(const ScratchFolder& folder, std::vector<std::string> more) {
  std::vector<std::string> arguments{"train",     data_of_digits(folder), "place=cpu",
                                     "limit=320", "epochs=1000",          "output=" + (folder / "runs").string(),
                                     "log_freq=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> quick(const ScratchFolder& folder) {
  return training(folder, {"model=lenet", "batch_size=32"});
}

// Its steps take a while, on one thread of any processor.
std::vector<std::string> slow(const ScratchFolder& folder, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"model=resnet18_small", testing::kUnderSanitizer ? "batch_size=8" : "batch_size=64",
                           "image_size=16", "strategy.cpu_threads=1"});
  return training(folder, more);
}

std::optional<fs::path> saved(const ScratchFolder& folder) { return newest_checkpoint(folder / "runs/1/checkpoints"); }

void wait_for_another_request() { std::this_thread::sleep_for(std::chrono::milliseconds(400)); }

// One request that has been seen, and long after it another; meanwhile the program stands still, so that its step does
// not end between them.
void request_twice(const Program& program, int number) {
  program.signal(number);
  EXPECT_TRUE(program.prints("stopping: the step at hand")) << program.output();
  program.signal(SIGSTOP);
  wait_for_another_request();
  program.signal(number);
  program.signal(SIGCONT);
}

TEST(Stop, IsSaidAtOnceAndSavesAndSaysHowToGoOn) {
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    ScratchFolder folder;
    Program program(quick(folder), folder / "out");
    EXPECT_TRUE(program.prints("step 4/10")) << program.output();
    program.signal(number);
    EXPECT_EQ(program.wait(), 130) << number;
    const std::string output = program.output();
    const size_t said = output.find("stopping: the step at hand is finished and saved; once more ends it at once");
    EXPECT_LT(said, output.find("stopped after")) << output;
    EXPECT_NE(output.find("resume=" + (folder / "runs/1").string()), std::string::npos) << output;
    EXPECT_TRUE(saved(folder)) << number;
  }
}

TEST(Stop, IsSaidBeforeTheStepIsDone) {
  ScratchFolder folder;
  Program program(slow(folder), folder / "out");
  EXPECT_TRUE(program.prints("training resnet18_small")) << program.output();
  program.signal(SIGINT);
  EXPECT_TRUE(program.prints("stopping: the step at hand")) << program.output();
  program.signal(SIGKILL);
  program.wait();
  EXPECT_EQ(program.output().find("stopped after"), std::string::npos) << program.output();
}

TEST(Stop, ASecondRequestEndsItAtOnceAndLeavesTheLastCheckpoint) {
  ScratchFolder folder;
  Program program(slow(folder, {"save_freq=1 steps", "keep_last=1"}), folder / "out");
  EXPECT_TRUE(program.prints("step 2/")) << program.output();
  request_twice(program, SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT);
  const std::optional<fs::path> last = saved(folder);
  ASSERT_TRUE(last) << program.output();
  EXPECT_NE(program.output().find("ended at once; the last checkpoint is " + last->string()), std::string::npos)
      << program.output();
}

TEST(Stop, ASecondRequestBeforeAnythingIsSavedSaysSo) {
  ScratchFolder folder;
  Program program(slow(folder), folder / "out");
  EXPECT_TRUE(program.prints("training resnet18_small")) << program.output();
  request_twice(program, SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_NE(program.output().find("ended at once; there is no checkpoint yet"), std::string::npos) << program.output();
  EXPECT_FALSE(saved(folder));
}

// A shell and the terminal's driver both send SIGHUP; timeout(1) signals the process and its group.
TEST(Stop, SignalsThatComeTogetherAreOneRequestAndSighupIsNeverASecondOne) {
  for (int number : {SIGINT, SIGHUP}) {
    ScratchFolder folder;
    Program program(slow(folder), folder / "out");
    EXPECT_TRUE(program.prints("training resnet18_small")) << program.output();
    program.signal(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    program.signal(number);
    if (number == SIGHUP) wait_for_another_request();
    if (number == SIGHUP) program.signal(number);
    EXPECT_EQ(program.wait(), 130);
    EXPECT_NE(program.output().find("stopped after"), std::string::npos) << program.output();
    EXPECT_TRUE(saved(folder));
  }
}

// Where a run is over before the second of them comes, too.
TEST(StopDeathTest, TheRestOfARequestThatComesAfterTheRunIsNoOther) {
  auto stop = [](int then) {
    {
      const auto signals = stop_signals(false);
      ::raise(SIGINT);
    }
    for (int number : {SIGINT, SIGTERM, SIGHUP}) ::raise(number);
    wait_for_another_request();
    ::raise(then);
    std::exit(3);
  };
  EXPECT_EXIT(stop(SIGHUP), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(stop(SIGINT), ::testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace bonfire::train::stop_test
