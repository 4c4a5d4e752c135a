#pragma once
// RunLock: a run's folder belongs to one process at a time, the first rank of the job that trains it.
//
//   train::RunLock lock("runs/7");    // ConfigError: who has it, where and since when
//
// runs/7/lock says who: host, process, when that began, user, command. The kernel keeps the lock itself (flock), so it
// ends with its owner, however that ends: the next job takes over what a dead one has left. Two things the kernel
// cannot always know. Where a file system has no such locks, the process that the file names is looked for. And a lock
// of another host may be held though this one's kernel sees nothing of it: it is never taken over; the error says which
// file to remove when that job is gone.

#include <filesystem>
#include <string>

namespace bonfire::train {

class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);  // DataError where the file cannot be written
  ~RunLock();                                          // removes the file
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Who held it before and is gone without giving it back, in words; empty: nobody.
  const std::string& taken_over_from() const { return taken_over_from_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string taken_over_from_;
};

}  // namespace bonfire::train
