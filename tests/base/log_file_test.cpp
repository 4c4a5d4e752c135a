#include "bonfire/base/log_file.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/small_disk.h"

namespace bonfire::base::log_file_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;
using bonfire::testing::SmallDisk;

TEST(LogFile, AppendsOrBeginsAnew) {
  ScratchFolder folder;
  folder.put("log", "before\n");
  LogFile(folder / "log", LogFile::Begin::at_the_end).write("one\n");
  EXPECT_EQ(folder.get("log"), "before\none\n");
  LogFile log(folder / "log", LogFile::Begin::empty);
  log.write("two\n");
  EXPECT_EQ(folder.get("log"), "two\n");
  EXPECT_EQ(log.take_warning(), "");
  EXPECT_EQ(log.losses(), "");
}

TEST(LogFile, AFullDiskCostsEntriesAndIsToldOnceAndAtTheEnd) {
  LogFile log("/dev/full", LogFile::Begin::at_the_end);
  EXPECT_EQ(log.take_warning(), "");
  log.write("one\n");
  EXPECT_EQ(
      log.take_warning(),
      "cannot write '/dev/full': the disk is full (No space left on device); what it will lack is said at the end");
  log.write("two\nthree\n", 2);
  EXPECT_EQ(log.take_warning(), "");
  EXPECT_EQ(log.losses(), "'/dev/full' lacks 3 of 3 entries: the disk is full (No space left on device)");
}

TEST(LogFile, GoesOnWithWholeEntriesWhenThereIsRoomAgain) {
  SmallDisk disk("64k");
  if (!disk.is_there()) GTEST_SKIP() << "a file system cannot be mounted here";
  LogFile log(disk / "log", LogFile::Begin::empty);
  const std::string entry(3000, 'a');
  log.write("first\n");
  disk.fill();
  log.write(entry + "\n");  // fits into the first page, which is the log's already
  log.write(entry + "\n");  // a part of it does
  log.write(entry + "\n");
  disk.make_room();
  log.write("last\n");
  std::ifstream stream(disk / "log");
  const std::string found{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_EQ(found, "first\n" + entry + "\nlast\n");
  EXPECT_NE(log.losses().find("lacks 2 of 5 entries: the disk is full"), std::string::npos) << log.losses();
  // A file that cannot be made for want of room is made later.
  disk.fill();
  LogFile late(disk / "late", LogFile::Begin::empty);
  late.write("lost\n");
  disk.make_room();
  late.write("kept\n");
  EXPECT_EQ(fs::file_size(disk / "late"), 5U);
}

TEST(LogFile, AReadOnlyFolderIsCalledThat) {
  ScratchFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
  {
    bonfire::testing::WithoutPrivileges nobody;
    EXPECT_ERROR(LogFile(folder / "log", LogFile::Begin::empty), DataError,
                 "the folder is read-only for this user (Permission denied)");
  }
  fs::permissions(folder.path(), fs::perms::owner_all);
  SmallDisk disk("64k");
  if (!disk.is_there()) GTEST_SKIP() << "a file system cannot be mounted here";
  disk.make_read_only();
  EXPECT_ERROR(LogFile(disk / "log", LogFile::Begin::empty), DataError,
               "it is on a file system that is mounted read-only (Read-only file system)");
}

}  // namespace
}  // namespace bonfire::base::log_file_test
