// The sample ledger of `bonfire train` through a crash, a restart, an interrupt and another number of ranks.

#include <gtest/gtest.h>

#include "tests/launch/launched.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::samples_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::joined;
using testing::ScratchFolder;
using testing::settings;
using testing::Words;

TEST(LaunchSamples, EverySampleOnceThroughAKillARestartAndOtherRanks) {
  ScratchFolder folder;
  Words traced{"--trace-samples", "epochs=6"};
  ChildProcess two(
      joined({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "--max_restarts", "1", "bonfire", "train"},
             settings(folder, 16, joined(traced, {"steps=25"}))),
      clean({{"BONFIRE_TEST", folder.path().string()}}));
  EXPECT_NE(two.read_line("epoch 2/4 done"), "") << two.output();
  ::kill(testing::process_of_rank(1, folder.path().string()), SIGKILL);
  ASSERT_EQ(two.wait(), 0) << two.output();
  expect_mentions(two.output(), {"restart 1 of 1"});

  // In the middle of an epoch, on one rank with another batch.
  ChildProcess one(
      joined({BONFIRE_PROGRAM, "train"}, settings(folder, 24, joined(traced, {"steps=50", "resume=auto"}))), clean());
  ASSERT_EQ(one.wait(), 0) << one.output();
  ChildProcess inspect({BONFIRE_PROGRAM, "inspect", "samples", (folder / "runs/1").string()}, clean());
  EXPECT_EQ(inspect.wait(), 0) << inspect.output();
  expect_mentions(inspect.output(), {"every sample of every epoch was trained on exactly once: ", "in 50 steps",
                                     "on 1 and 2 ranks, resumed 2 times",
                                     "at 50 of 50 steps ranks read exactly the samples that are recorded"});
  EXPECT_NE(folder.get("runs/1/report.html").find("By its ledger, every sample of every epoch"), std::string::npos);

  // Another sample than is recorded.
  std::string name = "runs/1/samples/restart-0.rank-1", text = folder.get(name);
  text.replace(text.find(' ', 4) + 1, text.find(' ', text.find(' ', 4) + 1) - text.find(' ', 4) - 1, "100000");
  folder.put(name, text);
  ChildProcess differs({BONFIRE_PROGRAM, "inspect", "samples", (folder / "runs/1").string()}, clean());
  EXPECT_EQ(differs.wait(), 1) << differs.output();
  expect_mentions(differs.output(), {"read but not recorded: sample 100000"});
}

}  // namespace
}  // namespace bonfire::launch::samples_test
