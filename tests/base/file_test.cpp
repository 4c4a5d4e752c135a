#include "bonfire/base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <thread>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::base::file_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::data_error;
using bonfire::testing::expect_mentions;
using bonfire::testing::ScratchFolder;
using bonfire::testing::WithoutPrivileges;

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write_text(const fs::path& path, std::initializer_list<std::string_view> pieces) {
  std::vector<std::span<const std::byte>> chunks;
  for (std::string_view piece : pieces) chunks.push_back(std::as_bytes(std::span(piece)));
  write_file_atomically(path, chunks);
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

// While it lives, no file may grow beyond `bytes`: writes fail in their middle, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limited{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(ReadFile, ReturnsAllBytes) {
  ScratchFolder folder;
  std::string content("a\0b\r\n\xFF", 6);
  EXPECT_EQ(text(read_file(folder.put("some", content))), content);
  EXPECT_EQ(text(read_file(folder.put("empty", ""))), "");
}

TEST(ReadFile, ReturnsARange) {
  ScratchFolder folder;
  fs::path path = folder.put("digits", "0123456789");
  EXPECT_EQ(text(read_file(path, 0, 10)), "0123456789");
  EXPECT_EQ(text(read_file(path, 3, 4)), "3456");
  EXPECT_EQ(text(read_file(path, 10, 0)), "");
}

TEST(ReadFile, RefusesARangeBeyondTheEndBeforeAllocatingIt) {
  ScratchFolder folder;
  fs::path path = folder.put("digits", "0123456789");
  expect_mentions(data_error([&] { read_file(path, 8, 3); }), {path.string(), "10 bytes", "3 bytes", "offset 8"});
  data_error([&] { read_file(path, 11, 0); });
  data_error([&] { read_file(path, 5, SIZE_MAX); });
  data_error([&] { read_file(path, UINT64_MAX, 2); });
}

TEST(ReadFile, SaysWhichFileIsMissing) {
  ScratchFolder folder;
  expect_mentions(data_error([&] { read_file(folder / "absent"); }),
                  {(folder / "absent").string(), "No such file or directory"});
}

TEST(ReadFile, RefusesADirectory) {
  ScratchFolder folder;
  expect_mentions(data_error([&] { read_file(folder.path()); }), {folder.path().string(), "Is a directory"});
  data_error([&] { MappedFile mapped(folder.path()); });
}

TEST(ReadFile, RefusesAPipeWithoutWaitingForAWriter) {
  ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_mentions(data_error([&] { read_file(folder / "pipe"); }), {"pipe", "regular file"});
}

TEST(ReadFile, SaysThatPermissionIsDenied) {
  ScratchFolder folder;
  fs::path path = folder.put("secret", "x");
  fs::permissions(path, fs::perms::none);
  WithoutPrivileges nobody;
  expect_mentions(data_error([&] { read_file(path); }), {path.string(), "Permission denied"});
}

TEST(MappedFile, ShowsTheBytesAndMovesWithThem) {
  ScratchFolder folder;
  MappedFile first(folder.put("some", "mapped"));
  MappedFile second(std::move(first));
  EXPECT_EQ(text(second.bytes()), "mapped");
  MappedFile third;
  third = std::move(second);
  EXPECT_EQ(text(third.bytes()), "mapped");
}

TEST(MappedFile, OfAnEmptyFileIsEmpty) {
  ScratchFolder folder;
  EXPECT_TRUE(MappedFile(folder.put("empty", "")).bytes().empty());
}

TEST(MappedFile, KeepsItsBytesWhenTheFileIsReplaced) {
  ScratchFolder folder;
  MappedFile mapped(folder.put("some", "old bytes"));
  write_text(folder / "some", {"new"});
  EXPECT_EQ(text(mapped.bytes()), "old bytes");
}

TEST(WriteFileAtomically, WritesTheChunksInOrderAndNothingElse) {
  ScratchFolder folder;
  write_text(folder / "some", {"one ", "", "two ", "three"});
  EXPECT_EQ(folder.get("some"), "one two three");
  write_text(folder / "none", {});
  EXPECT_EQ(folder.get("none"), "");
  EXPECT_EQ(folder.count(), 2U);
}

TEST(WriteFileAtomically, ReplacesALongerFile) {
  ScratchFolder folder;
  folder.put("some", "much longer than what follows");
  write_text(folder / "some", {"short"});
  EXPECT_EQ(folder.get("some"), "short");
  EXPECT_EQ(folder.count(), 1U);
}

TEST(WriteFileAtomically, FailingHalfwayKeepsTheOldFileAndLeavesNothingBehind) {
  ScratchFolder folder;
  folder.put("some", "old");
  std::string large(100'000, 'x');
  std::string message;
  {
    FileSizeLimit limit(50'000);
    message = data_error([&] { write_text(folder / "some", {large}); });
    data_error([&] { write_text(folder / "new", {large}); });
  }
  expect_mentions(message, {(folder / "some").string(), "File too large"});
  EXPECT_EQ(folder.get("some"), "old");
  EXPECT_EQ(folder.count(), 1U);
}

TEST(WriteFileAtomically, RefusesAFolderThatIsMissing) {
  ScratchFolder folder;
  expect_mentions(data_error([&] { write_text(folder / "absent/some", {"x"}); }),
                  {(folder / "absent/some").string(), "No such file or directory"});
}

TEST(WriteFileAtomically, RefusesAFolderThatMayNotBeWritten) {
  ScratchFolder folder;
  fs::permissions(folder.path(),
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  {
    WithoutPrivileges nobody;
    expect_mentions(data_error([&] { write_text(folder / "some", {"x"}); }),
                    {(folder / "some").string(), "Permission denied"});
  }
  fs::permissions(folder.path(), fs::perms::owner_all);
}

TEST(WriteFileAtomically, NeverReplacesWhatIsNoRegularFile) {
  ScratchFolder folder;
  fs::create_directory(folder / "sub");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_mentions(data_error([&] { write_text(folder / "sub", {"x"}); }), {"sub", "not a regular file"});
  data_error([&] { write_text(folder / "pipe", {"x"}); });
  data_error([&] { write_text(folder / "newfolder/", {"x"}); });
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_EQ(folder.count(), 2U);
}

TEST(WriteFileAtomically, GivesANewFileTheUsualModeAndAReplacedOneItsOwn) {
  ScratchFolder folder;
  mode_t mask = ::umask(022);
  write_text(folder / "new", {"x"});
  fs::permissions(folder.put("private", "x"), fs::perms::owner_read | fs::perms::owner_write);
  write_text(folder / "private", {"y"});
  ::umask(mask);
  EXPECT_EQ(mode_of(folder / "new"), 0644U);
  EXPECT_EQ(mode_of(folder / "private"), 0600U);
}

TEST(WriteFileAtomically, FollowsALink) {
  ScratchFolder folder;
  folder.put("real", "old");
  fs::create_symlink("real", folder / "link");
  fs::create_symlink("absent", folder / "dangling");
  write_text(folder / "link", {"new"});
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(folder.get("real"), "new");
  expect_mentions(data_error([&] { write_text(folder / "dangling", {"x"}); }), {"dangling"});
}

TEST(WriteFileAtomically, TakesTheLongestNameThereIs) {
  ScratchFolder folder;
  std::string name(255, 'n');
  write_text(folder / name, {"x"});
  EXPECT_EQ(folder.get(name), "x");
}

TEST(KindOf, SaysWhatIsThereAndWhenItCannotBeKnown) {
  ScratchFolder folder;
  folder.put("file", "x");
  fs::create_directory(folder / "closed");
  folder.put("closed/inside", "x");
  fs::create_symlink("file", folder / "link");
  fs::create_symlink("loop", folder / "loop");
  EXPECT_EQ(kind_of(folder / "file"), PathKind::file);
  EXPECT_EQ(kind_of(folder / "link"), PathKind::file);
  EXPECT_EQ(kind_of(folder.path()), PathKind::folder);
  EXPECT_EQ(kind_of("/dev/null"), PathKind::other);
  EXPECT_EQ(kind_of(folder / "absent"), PathKind::nothing);
  EXPECT_EQ(kind_of(folder / "file/inside"), PathKind::nothing);
  EXPECT_ERROR(kind_of(folder / "loop"), DataError, "Too many levels of symbolic links");
  EXPECT_ERROR(kind_of(std::string(5000, 'x')), DataError, "File name too long");
  fs::permissions(folder / "closed", fs::perms::none);
  fs::permissions(folder.path(), fs::perms::all);
  {
    testing::WithoutPrivileges nobody;
    EXPECT_ERROR(base::exists(folder / "closed/inside"), DataError, "Permission denied");
  }
  fs::permissions(folder / "closed", fs::perms::all);
}

TEST(WriteFileAtomically, TakesABareName) {
  ScratchFolder folder;
  fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_text("bare", {"x"});
  fs::current_path(before);
  EXPECT_EQ(folder.get("bare"), "x");
}

TEST(WriteFileAtomically, ReadersSeeOneWholeVersionWhileWritersCompete) {
  ScratchFolder folder;
  std::string versions[] = {std::string(20'000, 'a'), std::string(30'000, 'b')};
  write_text(folder / "some", {versions[0]});
  std::vector<std::thread> writers;
  for (const std::string& version : versions)
    writers.emplace_back([&folder, &version] {
      for (int i = 0; i < 20; ++i)
        write_text(folder / "some", {std::string_view(version).substr(0, 7), version.substr(7)});
    });
  for (int i = 0; i < 200; ++i) {
    std::string seen = text(read_file(folder / "some"));
    EXPECT_TRUE(seen == versions[0] || seen == versions[1]) << seen.size() << " bytes";
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(folder.count(), 1U);
}

}  // namespace
}  // namespace bonfire::base::file_test
