// `bonfire train` as several processes. (tests/train/ranks_test.cpp has the same by threads, and more of it.)

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/launch/launched.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::train_test {

namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::expect_same;
using testing::free_port;
using testing::joined;
using testing::Log;
using testing::log_of;
using testing::ScratchFolder;
using testing::settings;
using testing::trained_alone;
using testing::Words;

TEST(LaunchTrain, OneCommandTrainsOnTwoRanksAsOnOne) {
  ScratchFolder folder, other;
  ChildProcess two(joined({BONFIRE_PROGRAM, "train", "--nproc", "2"}, settings(folder, 16)), clean());
  ASSERT_EQ(two.wait(), 0) << two.output();
  expect_mentions(two.output(), {"[rank 0] 2 epochs of 7 steps of 32 images (16 on each of 2 ranks) on cpu:0",
                                 "[rank 0] report      " + (folder / "runs/1/report.html").string()});
  EXPECT_EQ(two.output().find("[rank 1]"), std::string::npos) << two.output();
  EXPECT_TRUE(std::filesystem::exists(folder / "runs/1/report.html"));
  EXPECT_FALSE(std::filesystem::exists(folder / "runs/2"));
  expect_same(log_of(folder / "runs/1"), trained_alone(other));
}

TEST(LaunchTrain, AnInterruptIsOneLastStepOfAllAndOneRankCanGoOn) {
  ScratchFolder folder, other;
  Words longer = settings(folder, 16, {"epochs=2000"});
  ChildProcess two(joined({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "bonfire", "train"}, longer), clean());
  EXPECT_NE(two.read_line("step 3/7"), "") << two.output();
  two.signal(SIGINT);
  EXPECT_EQ(two.wait(), 130) << two.output();
  expect_mentions(two.output(),
                  {"\n[rank 0] stopping: the step at hand is finished", "saved. To go on: bonfire train"});
  EXPECT_EQ(two.output().find("[rank 1]"), std::string::npos) << two.output();
  auto steps = static_cast<int64_t>(log_of(folder / "runs/1").losses.size());
  EXPECT_GE(steps, 3);

  // The same course as one rank's that never stopped, for as long as rounding lets them.
  std::string until = fmt::format("steps={}", steps + 3);
  ChildProcess one(joined({BONFIRE_PROGRAM, "train"}, settings(folder, 32, {until, "resume=auto"})), clean());
  EXPECT_EQ(one.wait(), 0) << one.output();
  ChildProcess whole(joined({BONFIRE_PROGRAM, "train"}, settings(other, 32, {until})), clean());
  EXPECT_EQ(whole.wait(), 0) << whole.output();
  Log found = log_of(folder / "runs/1"), expected = log_of(other / "runs/1");
  EXPECT_EQ(found.losses.size(), static_cast<size_t>(steps + 3));
  for (int64_t step = 1; step <= std::min<int64_t>(30, steps + 3); ++step)
    EXPECT_NEAR(found.losses.at(step), expected.losses.at(step), 1e-3 * expected.losses.at(step)) << step;
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// By a rank that is killed: the run goes on from its last checkpoint. An older run in the folder is not its own.
TEST(LaunchTrain, RestartsByItselfAndEndsWithTheSameWeights) {
  ScratchFolder folder, other;
  Words longer{"epochs=6"};
  ChildProcess older(joined({BONFIRE_PROGRAM, "train"}, settings(folder, 32)), clean());
  ASSERT_EQ(older.wait(), 0);
  ChildProcess two(
      joined({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "--max_restarts", "1", "bonfire", "train"},
             settings(folder, 16, longer)),
      clean({{"BONFIRE_TEST", folder.path().string()}}));
  EXPECT_NE(two.read_line("epoch 1/6 done"), "") << two.output();
  while (!std::filesystem::exists(folder / "runs/2/checkpoints/step-00000007/manifest.json") &&
         two.read_line("step") != "") {  // it is written while training goes on
  }
  std::vector<int> ranks;
  for (int process : testing::processes_with("BONFIRE_TEST=" + folder.path().string()))
    if (bytes_of(fmt::format("/proc/{}/environ", process)).find(std::string("\0RANK=1\0", 8)) != std::string::npos)
      ranks.push_back(process);
  ASSERT_EQ(ranks.size(), 1U);
  ::kill(ranks[0], SIGKILL);
  EXPECT_EQ(two.wait(), 0) << two.output();
  expect_mentions(two.output(), {"rank 1 (process", "was killed by signal 9", "restart 1 of 1"});
  EXPECT_FALSE(std::filesystem::exists(folder / "runs/3"));
  ChildProcess whole(joined({BONFIRE_PROGRAM, "train", "--nproc", "2"}, settings(other, 16, longer)), clean());
  ASSERT_EQ(whole.wait(), 0) << whole.output();
  const char* weights = "checkpoints/step-00000042/weights.safetensors";
  EXPECT_FALSE(bytes_of(other / "runs/1" / weights).empty());
  EXPECT_TRUE(bytes_of(folder / "runs/2" / weights) == bytes_of(other / "runs/1" / weights)) << two.output();
}

TEST(LaunchTrain, TwoNodesTrainOverGloo) {
  ScratchFolder folder, other;
  int port = free_port();
  auto node = [&](int number) {
    return joined({BONFIRE_PROGRAM, "launch", "--nnodes", "2", "--node_rank", std::to_string(number), "--master_port",
                   std::to_string(port), "--nproc_per_node", "1", "bonfire", "train"},
                  settings(folder, 16, {"backend=gloo"}));
  };
  ChildProcess one(node(1), clean({{"BONFIRE_TOKEN", "secret"}}));
  ChildProcess zero(node(0), clean({{"BONFIRE_TOKEN", "secret"}}));
  EXPECT_EQ(zero.wait(), 0) << zero.output();
  EXPECT_EQ(one.wait(), 0) << one.output();
  expect_same(log_of(folder / "runs/1"), trained_alone(other));
}

TEST(LaunchTrain, WhatCannotBeIsSaidAndNothingIsLeftWaiting) {
  ScratchFolder folder;
  ChildProcess differs(joined({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "bonfire", "train", "num_gpus=3"},
                              settings(folder, 16)),
                       clean());
  EXPECT_EQ(differs.wait(), 1);
  expect_mentions(differs.output(), {"num_gpus is 3, but whoever started this chose 2 ranks on this host"});
  ChildProcess none({BONFIRE_PROGRAM, "train", "--nproc", "0"}, clean());
  EXPECT_EQ(none.wait(), 1);
  expect_mentions(none.output(), {"num_gpus is 0, expected at least 1"});
  // Only the first rank looks for the checkpoint; the other ends with it.
  ChildProcess absent(joined({BONFIRE_PROGRAM, "train", "--nproc", "2", "resume=/absent"}, {}), clean());
  EXPECT_EQ(absent.wait(), 1);
  expect_mentions(absent.output(), {"there is no whole checkpoint in '/absent'", "rank 0 (process"});
}

}  // namespace
}  // namespace bonfire::launch::train_test
