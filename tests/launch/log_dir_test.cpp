// What --log_dir keeps, where there is no room for it.

#include <gtest/gtest.h>

#include "tests/launch/launched.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/small_disk.h"

namespace bonfire::launch::log_dir_test {
namespace {

namespace fs = std::filesystem;
using testing::count;
using testing::expect_mentions;
using testing::Launched;
using testing::ScratchFolder;
using testing::SmallDisk;

// /dev/full is a disk without room.
TEST(LogDir, AFullDiskCostsLinesAndIsToldOnceAndAtTheEnd) {
  ScratchFolder folder;
  fs::create_directories(folder / "restart_0");
  fs::create_symlink("/dev/full", folder / "restart_0/rank_1.log");
  Launched job({"--nproc_per_node", "2", "--log_dir", folder.path().string()},
               {"print", "one", "print", "two", "print", "three"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(count(job.output(), "[rank 1] three"), 1U) << job.output();
  EXPECT_EQ(count(job.output(), "bonfire launch: cannot write '" + (folder / "restart_0/rank_1.log").string() +
                                    "': the disk is full (No space left on device)"),
            1U)
      << job.output();
  EXPECT_EQ(count(job.output(), "rank_1.log' lacks 3 of 3 entries: the disk is full"), 1U) << job.output();
  EXPECT_EQ(folder.get("restart_0/rank_0.log"), "one\ntwo\nthree\n");
}

TEST(LogDir, ADiskThatIsFullBeforeTheStartCostsTheLogOnly) {
  SmallDisk disk("64k");
  if (!disk.is_there()) GTEST_SKIP() << "a file system cannot be mounted here";
  fs::create_directories(disk / "logs/restart_0");
  disk.fill();
  Launched job({"--nproc_per_node", "1", "--log_dir", (disk / "logs").string()}, {"print", std::string(8000, 'x')});
  EXPECT_EQ(job.wait(), 0) << job.output();
  expect_mentions(job.output(), {"rank_0.log': the disk is full", "rank_0.log' lacks 1 of 1 entry"});
}

TEST(LogDir, AReadOnlyFolderIsCalledThat) {
  SmallDisk disk("64k");
  if (!disk.is_there()) GTEST_SKIP() << "a file system cannot be mounted here";
  disk.make_read_only();
  Launched job({"--nproc_per_node", "1", "--log_dir", (disk / "logs").string()}, {"print", "one"});
  EXPECT_NE(job.wait(), 0);
  expect_mentions(job.output(), {"[launch] cannot make '" + (disk / "logs/restart_0").string() +
                                 "' for the logs: it is on a file system that is mounted read-only"});
}

}  // namespace
}  // namespace bonfire::launch::log_dir_test
