#pragma once
// A disk of a few kilobytes: a tmpfs that this thread, and processes that it starts, see at a folder of their own.
// Where mounting is not allowed there is none.
//
//   SmallDisk disk("256k");
//   if (!disk.is_there()) GTEST_SKIP() << "a file system cannot be mounted here";

#include <sched.h>
#include <sys/mount.h>

#include <string>

#include "tests/support/scratch_folder.h"

namespace bonfire::testing {

class SmallDisk {
 public:
  explicit SmallDisk(const std::string& size) {
    // A mount table of its own: nobody else sees the disk.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
    const std::string options = "size=" + size;
    is_there_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (is_there_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }

  bool is_there() const { return is_there_; }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(const char* name) const { return folder_ / name; }

  void fill() const {  // to the last byte
    std::ofstream filler(folder_ / "filler", std::ios::binary);
    for (const std::string page(4096, 'x'); filler.write(page.data(), 4096).flush();) {
    }
  }
  void make_room() const { std::filesystem::remove(folder_ / "filler"); }
  void make_read_only() const { ::mount("none", folder_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr); }

 private:
  ScratchFolder folder_;
  bool is_there_ = false;
};

}  // namespace bonfire::testing
