#include "bonfire/base/private_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "bonfire/base/file.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::base::private_file_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

struct Modes {
  mode_t file, folder, ordinary;
  friend bool operator==(const Modes&, const Modes&) = default;
};

Modes made_under(mode_t umask) {
  ScratchFolder folder;
  const mode_t before = ::umask(umask);
  write_private_file(folder / "file", {});
  std::error_code error;
  EXPECT_TRUE(make_private_folder(folder / "folder", error));
  write_file_atomically(folder / "ordinary", {});
  ::umask(before);
  return {mode_of(folder / "file"), mode_of(folder / "folder"), mode_of(folder / "ordinary")};
}

TEST(PrivateFile, UnderAUsualUmaskNobodyElseReadsIt) {
  EXPECT_EQ(made_under(022), (Modes{0600, 0700, 0644}));
  EXPECT_EQ(made_under(002), (Modes{0600, 0700, 0664}));
}

TEST(PrivateFile, AUmaskThatWasChosenIsFollowed) {
  EXPECT_EQ(made_under(027), (Modes{0640, 0750, 0640}));
  EXPECT_EQ(made_under(000), (Modes{0666, 0777, 0666}));
  EXPECT_EQ(made_under(077), (Modes{0600, 0700, 0600}));
}

TEST(PrivateFile, AFolderThatIsThereIsNoErrorAndAFileIs) {
  ScratchFolder folder;
  std::error_code error;
  EXPECT_FALSE(make_private_folder(folder.path(), error));
  EXPECT_FALSE(error);
  EXPECT_FALSE(make_private_folder(folder.put("file", ""), error));
  EXPECT_EQ(error, std::errc::file_exists);
}

}  // namespace
}  // namespace bonfire::base::private_file_test
