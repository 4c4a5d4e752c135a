#pragma once
// A log: entries at the end of a file. What cannot be written, because the disk is full, is lost and counted, and the
// program goes on; as soon as there is room again, so does the log.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace bonfire::base {

// Why something cannot be written there: "the disk is full (No space left on device)", "the folder is read-only for
// this user (Permission denied)", "it is on a file system that is mounted read-only (Read-only file system)".
std::string write_problem(int error);  // an errno

class LogFile {
 public:
  enum class Begin : uint8_t { empty, at_the_end };

  LogFile() = default;  // writes nothing
  // DataError that says why, where it cannot be made for another reason than a full disk.
  LogFile(std::filesystem::path path, Begin begin);
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&& other) noexcept;
  ~LogFile();

  void write(std::string_view bytes, int64_t entries = 1);  // all of it, or nothing

  std::string take_warning();  // once, after the first loss: what is lost and why. Empty: nothing new
  std::string losses() const;  // "runs/1/metrics.jsonl lacks 12 of 40 entries: the disk is full (…)"; empty: none

 private:
  int open_now();  // an errno, or 0

  std::filesystem::path path_;
  int descriptor_ = -1;
  int flags_ = 0;
  int problem_ = 0;  // the last errno
  bool warned_ = false;
  int64_t entries_ = 0, lost_ = 0;
};

}  // namespace bonfire::base
