// Ranks that are frozen: stopped by a signal that they cannot hear, so that their heartbeat stops with them.
#include <gtest/gtest.h>

#include "bonfire/comm/gloo/gloo_group.h"
#include "tests/launch/launched.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch {
namespace {

using testing::count;
using testing::expect_mentions;
using testing::free_port;
using testing::Launched;
using testing::LaunchedNode;
using testing::ScratchFolder;
using testing::Words;

constexpr const char* kStop = "19";  // SIGSTOP

// Rank 1 stops once, in the middle; behind a restart all go through.
Words stop_once(const char* backend, const std::string& file) {
  return {"fleet", backend, "reduce", "5",   "if",     "1", "once",  file,  "sleep", "1.5",
          "kill",  kStop,   "if",     "all", "reduce", "5", "leave", "now", "print", "all done"};
}

void expect_named_and_mended(Launched& job) {
  EXPECT_EQ(job.wait(), 0) << job.output();
  expect_mentions(job.output(),
                  {"bonfire launch: rank 1 (process ", "is frozen: it has given no sign of life for 8 s",
                   "was last seen in step 0, all_reduce; it had printed nothing", "bonfire launch: restart 1 of 1"});
  for (const char* survivor : {"[rank 0] [all_reduce] aborted by rank ", "[rank 2] [all_reduce] aborted by rank "})
    EXPECT_EQ(count(job.output(), survivor), 1u) << job.output();
  EXPECT_EQ(count(job.output(), "is frozen: it gives no sign of life, and was last seen in step 0, all_reduce"), 2u);
  EXPECT_EQ(count(job.output(), "all done\n"), 3u) << job.output();
}

// Several jobs at once: each waits for most of its time.
TEST(FrozenRanks, AreNamedByAllAndEndedAndTheJobGoesOn) {
  ScratchFolder folder;
  Words options{"--nproc_per_node", "3", "--max_restarts", "1"};
  Launched shared(options, stop_once("shm", folder / "shm"));
  // Ranks that compute for long, wait, or have ended are not frozen.
  Launched busy({"--nproc_per_node", "3"},
                {"fleet", "shm", "if", "0", "sleep", "10", "if", "2", "sleep", "9", "if", "all", "print", "fine"});
  if (comm::has_gloo()) {
    Launched messages(options, stop_once("gloo", folder / "gloo"));
    int port = free_port();
    LaunchedNode zero(0, port, {"--max_restarts", "1"}, stop_once("gloo", folder / "nodes"));
    LaunchedNode one(1, port, {"--max_restarts", "1"}, stop_once("gloo", folder / "nodes"));
    expect_named_and_mended(messages);
    for (Launched* node : {static_cast<Launched*>(&zero), static_cast<Launched*>(&one)}) {
      EXPECT_EQ(node->wait(), 0) << node->output();
      expect_mentions(node->output(), {"bonfire launch: rank 1 (", "is frozen: it has given no sign of life for 8 s",
                                       "bonfire launch: restart 1 of 1", "all done"});
    }
  }
  expect_named_and_mended(shared);
  EXPECT_EQ(busy.wait(), 0) << busy.output();
  EXPECT_EQ(count(busy.output(), "fine\n"), 3u) << busy.output();
}

TEST(FrozenRanks, AreNotFoundInATimeThatABusyHostNeeds) {
  Launched refused({"--rank_timeout", "2"}, {"print", "started"});
  EXPECT_EQ(refused.wait(), 1);
  expect_mentions(refused.output(), {"--rank_timeout is less than 3 s", "0 switches it off"});
}

}  // namespace
}  // namespace bonfire::launch
