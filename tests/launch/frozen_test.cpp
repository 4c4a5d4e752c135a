// Ranks that are frozen: stopped by a signal that they cannot hear, so that their heartbeat stops with them.
#include <gtest/gtest.h>

#include <cstdlib>

#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "bonfire/launch/launcher.h"
#include "tests/launch/launched.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::frozen_test {
namespace {

using testing::count;
using testing::expect_mentions;
using testing::free_port;
using testing::joined;
using testing::Launched;
using testing::LaunchedNode;
using testing::ScratchFolder;
using testing::Words;

constexpr const char* kStop = "19";  // SIGSTOP

// Rank 1 stops once, in the middle; after a restart all go through.
Words stop_once(const char* backend, const std::string& file) {
  return {"fleet", backend, "reduce", "5",   "if",     "1", "once",  file,  "sleep", "1.5",
          "kill",  kStop,   "if",     "all", "reduce", "5", "leave", "now", "print", "all done"};
}

void expect_named_and_mended(Launched& job) {
  EXPECT_EQ(job.wait(), 0) << job.output();
  expect_mentions(job.output(),
                  {"bonfire launch: rank 1 (process ", "is frozen: it has given no sign of life for 8 s",
                   "was last seen in step 5, all_reduce; it had printed nothing", "bonfire launch: restart 1 of 1"});
  for (const char* survivor : {"[rank 0] [all_reduce] aborted by rank ", "[rank 2] [all_reduce] aborted by rank "})
    EXPECT_EQ(count(job.output(), survivor), 1u) << job.output();
  EXPECT_EQ(count(job.output(), "is frozen: it gives no sign of life, and was last seen in step 5, all_reduce"), 2u);
  EXPECT_EQ(count(job.output(), "all done\n"), 3u) << job.output();
}

// Without our launcher: the last rank, and the first, which holds the store.
void expect_named_under_mpirun() {
  const std::string program = testing::program_beside("rank_program");
  const Words reduces{program, "fleet", "mpi", "reduce", "5", "sleep", "1.5", "reduce", "5"};
  const Words stops{program, "fleet", "mpi", "reduce", "5", "sleep", "1.5", "kill", kStop};
  const Words mpirun{"timeout", "-k", "1", "60", "mpirun", "--oversubscribe", "-n", "1"};
  const testing::ChildProcess::Variables variables =
      testing::clean({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  testing::ChildProcess last(joined(joined(joined(mpirun, reduces), {":", "-n", "1"}), stops), variables);
  testing::ChildProcess first(joined(joined(joined(mpirun, stops), {":", "-n", "1"}), reduces), variables);
  EXPECT_NE(last.read_line("[all_reduce] aborted by rank 0 ("), "") << last.output();
  expect_mentions(last.output(),
                  {"rank 1 (", "is frozen: it gives no sign of life, and was last seen in step 5, all_r"});
  EXPECT_NE(first.read_line("[all_reduce] aborted by rank 1 ("), "") << first.output();
  expect_mentions(first.output(), {"rank 0 (", ", which holds the store, has given no sign of life for "});
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
  if (comm::has_mpi() && std::system("command -v mpirun >/dev/null 2>&1") == 0) expect_named_under_mpirun();
  expect_named_and_mended(shared);
  EXPECT_EQ(busy.wait(), 0) << busy.output();
  EXPECT_EQ(count(busy.output(), "fine\n"), 3u) << busy.output();
}

// Ranks that live but do not come are named when collective_timeout is over, with the step that they have reached.
TEST(LateRanks, AreNamedByAllWithTheirStepAndCollective) {
  const testing::ChildProcess::Variables timeout{{"SECONDS", "8"}};
  auto words = [](const char* backend) {
    return Words{"fleet", backend, "reduce", "5", "sleep", "1.5", "if", "1", "sleep", "60", "if", "all", "reduce", "5"};
  };
  auto expect_named = [](Launched& job, const std::string& seen) {
    EXPECT_EQ(job.wait(), kLostPeer) << job.output();
    for (const char* rank : {"[rank 0] ", "[rank 2] "}) {
      size_t at = job.output().find(rank);
      ASSERT_NE(at, std::string::npos) << job.output();
      std::string line = job.output().substr(at, job.output().find('\n', at) - at);
      expect_mentions(line, {"[all_reduce] ", "waited 8 s for rank 1 (", ", process ", seen});
    }
    expect_mentions(job.output(),
                    {"bonfire launch: rank ", "ended with exit status 76; its last lines:\n    [all_reduce]"});
  };
  Launched shared({"--nproc_per_node", "3"}, words("shm"), timeout);
  if (comm::has_gloo()) {
    Launched messages({"--nproc_per_node", "3"}, words("gloo"), timeout);
    expect_named(messages, "which was last seen in step 5, all_reduce (this rank is in step 6, all_reduce)");
  }
  expect_named(shared, "which last began all_reduce in step 5 (its call ");
}

TEST(FrozenRanks, AreNotFoundInATimeThatABusyHostNeeds) {
  Launched refused({"--rank_timeout", "2"}, {"print", "started"});
  EXPECT_EQ(refused.wait(), 1);
  expect_mentions(refused.output(), {"--rank_timeout is less than 3 s", "0 switches it off"});
}

}  // namespace
}  // namespace bonfire::launch::frozen_test
