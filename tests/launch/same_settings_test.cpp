// Ranks of `bonfire train` that were started with different settings end at once, and say which, whoever started them.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "tests/launch/launched.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::same_settings_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::joined;
using testing::ScratchFolder;
using testing::settings;
using testing::Words;

// Two ranks, of which the second has more settings than the first.
Words two_ranks(const Words& both, const std::string& second) {
  std::string command = std::string("exec ") + BONFIRE_PROGRAM + " train";
  for (const std::string& word : both) command += " '" + word + "'";
  command += " $(test \"$RANK\" = 1 && echo " + second + ")";
  return {BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "sh", "-c", command};
}

// A run that is not refused would train on; nothing may be left of one that is.
void expect_refused(const ScratchFolder& folder, ChildProcess& job, const std::string& difference) {
  EXPECT_EQ(job.wait(), 1) << job.output();
  expect_mentions(job.output(), {"the ranks differ: " + difference});
  EXPECT_EQ(job.output().find("EnforceNotMet"), std::string::npos) << job.output();
  EXPECT_FALSE(std::filesystem::exists(folder / "runs/1")) << job.output();
}

class LaunchSameSettings : public ::testing::TestWithParam<const char*> {
  void SetUp() override {
    if (GetParam() == std::string("gloo") && !comm::has_gloo()) GTEST_SKIP() << "no Gloo here";
  }
};

TEST_P(LaunchSameSettings, OfBothRanksAreComparedAtTheStart) {
  const std::pair<const char*, const char*> differing[] = {
      {"lr=0.5", "lr is 0.005 on rank 0 and 0.5 on rank 1"},
      {"epochs=3", "epochs is 2 on rank 0 and 3 on rank 1"},
      {"batch_size=17", "batch_size is 16 on rank 0 and 17 on rank 1"},
      {"strategy.accumulate_steps=2", "strategy.accumulate_steps is 1 on rank 0 and 2 on rank 1"},
      {"seed=7 optimizer=adam",
       "seed is 1 on rank 0 and 7 on rank 1, optimizer is \"momentum\" on rank 0 and \"adam\" on rank 1"}};
  for (const auto& [second, difference] : differing) {
    ScratchFolder folder;
    const std::string backend = std::string("backend=") + GetParam();
    ChildProcess job(two_ranks(settings(folder, 16, {backend}), second), clean());
    expect_refused(folder, job, difference);
  }
}
INSTANTIATE_TEST_SUITE_P(Over, LaunchSameSettings, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST(LaunchSameSettings, OfBothRanksAreComparedByMpiToo) {
  if (!comm::has_mpi() || std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "no MPI here";
  ScratchFolder folder;
  const Words rank = joined({BONFIRE_PROGRAM, "train"}, settings(folder, 16, {"backend=mpi"}));
  Words words = joined({"mpirun", "--oversubscribe", "-n", "1"}, rank);
  words = joined(joined(words, {":", "-n", "1"}), joined(rank, {"lr=0.5", "epochs=3"}));
  ChildProcess job(words, clean({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}));
  expect_refused(folder, job, "epochs is 2 on rank 0 and 3 on rank 1, lr is 0.005 on rank 0 and 0.5 on rank 1");
}

// Such ranks would never become one group: they are compared before.
TEST(LaunchSameSettings, AnotherBackendIsNamedBeforeAnythingIsConnected) {
  ScratchFolder folder;
  ChildProcess job(two_ranks(settings(folder, 16, {"backend=shm"}), "backend=gloo"), clean());
  expect_refused(folder, job, "backend is shm on rank 0 and gloo on rank 1");
}

TEST(LaunchSameSettings, DataOfTheSameNameIsComparedByWhatItHolds) {
  ScratchFolder folder, other;
  train::put_digits(other / "digits");
  std::string labels = other.get("digits/train-labels-idx1-ubyte");
  labels[8] = static_cast<char>((labels[8] + 1) % 10);
  other.put("digits/train-labels-idx1-ubyte", labels);
  ChildProcess job(two_ranks(settings(folder, 16), train::data_of_digits(other)), clean());
  expect_refused(folder, job, "the training data is 480 samples (hash ");
}

// What is one process's own business may differ.
TEST(LaunchSameSettings, ThreadsMayDiffer) {
  ScratchFolder folder;
  ChildProcess job(two_ranks(settings(folder, 16, {"steps=2"}), "num_workers=2 strategy.cpu_threads=1"), clean());
  EXPECT_EQ(job.wait(), 0) << job.output();
}

// A run goes on with as many ranks as it had, and its launcher's restart takes its lock up again.
TEST(LaunchResume, ARunGoesOnWithItsOwnRanksAndARestartTakesItsLock) {
  ScratchFolder folder;
  ChildProcess first(joined({BONFIRE_PROGRAM, "train", "--nproc", "2"}, settings(folder, 16, {"epochs=1"})), clean());
  ASSERT_EQ(first.wait(), 0) << first.output();
  const std::string resume = "resume=" + (folder / "runs/1").string();
  ChildProcess longer({BONFIRE_PROGRAM, "train", resume, "epochs=2"}, clean());
  EXPECT_EQ(longer.wait(), 0) << longer.output();
  expect_mentions(longer.output(), {"(16 on each of 2 ranks)", "goes on with other settings: epochs 1 → 2"});
  ChildProcess complete({BONFIRE_PROGRAM, "train", resume}, clean());
  EXPECT_EQ(complete.wait(), 0) << complete.output();
  expect_mentions(complete.output(), {"is complete: 14 steps, 2 epochs; nothing was done or changed"});

  const std::string mark = folder.path().string();
  ChildProcess job({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "--max_restarts", "1", "bonfire", "train",
                    resume, "epochs=2000", "save_freq=1"},
                   clean({{"BONFIRE_TEST", mark}}));
  EXPECT_NE(job.read_line("epoch 3/2000 done"), "") << job.output();
  ChildProcess second({BONFIRE_PROGRAM, "train", resume, "epochs=2000"}, clean());
  EXPECT_EQ(second.wait(), 1) << second.output();
  expect_mentions(second.output(), {"is being trained by process "});
  for (int process : testing::processes_with("BONFIRE_TEST=" + mark)) {
    std::ifstream stream(fmt::format("/proc/{}/environ", process), std::ios::binary);
    const std::string variables{std::istreambuf_iterator<char>(stream), {}};
    if (variables.find(std::string("\0RANK=0\0", 8)) != std::string::npos) ::kill(process, SIGKILL);
  }
  EXPECT_NE(job.read_line("restart 1 of 1"), "") << job.output();
  EXPECT_NE(job.read_line("which is gone: taken over"), "") << job.output();
  EXPECT_NE(job.read_line("epoch 5/2000 done"), "") << job.output();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130) << job.output();
}

}  // namespace
}  // namespace bonfire::launch::same_settings_test
