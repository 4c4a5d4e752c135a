#include "bonfire/base/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"

namespace bonfire::base {

namespace {

bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

// An errno, or 0. Half an entry is taken back.
int write_whole(int descriptor, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t count = uninterrupted([&] { return ::write(descriptor, bytes.data() + done, bytes.size() - done); });
    if (count < 0) break;
    done += static_cast<size_t>(count);
  }
  if (done == bytes.size()) return 0;
  const int error = errno;
  struct stat status {};
  if (done > 0 && ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) [[maybe_unused]]
    int cut = ::ftruncate(descriptor, status.st_size - static_cast<off_t>(done));
  return error;
}

}  // namespace

std::string write_problem(int error) {
  const std::string system = std::generic_category().message(error);
  if (error == ENOSPC) return fmt::format("the disk is full ({})", system);
  if (error == EDQUOT) return fmt::format("this user has no more room on the disk ({})", system);
  if (error == EROFS) return fmt::format("it is on a file system that is mounted read-only ({})", system);
  if (error == EACCES || error == EPERM) return fmt::format("the folder is read-only for this user ({})", system);
  return system;
}

LogFile::LogFile(std::filesystem::path path, Begin begin)
    : path_(std::move(path)),
      flags_(O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (begin == Begin::empty ? O_TRUNC : 0)) {
  problem_ = open_now();
  if (problem_ != 0 && !is_full(problem_))
    throw_error<DataError>("[log] cannot write '{}': {}", path_.string(), write_problem(problem_));
}

LogFile::LogFile(LogFile&& other) noexcept { *this = std::move(other); }

LogFile& LogFile::operator=(LogFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(flags_, other.flags_);
  std::swap(problem_, other.problem_);
  std::swap(warned_, other.warned_);
  std::swap(entries_, other.entries_);
  std::swap(lost_, other.lost_);
  return *this;
}

LogFile::~LogFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int LogFile::open_now() {
  descriptor_ = uninterrupted([&] { return ::open(path_.c_str(), flags_, 0666); });
  return descriptor_ < 0 ? errno : 0;
}

void LogFile::write(std::string_view bytes, int64_t entries) {
  if (path_.empty()) return;
  entries_ += entries;
  int error = descriptor_ < 0 ? open_now() : 0;
  if (error == 0) error = write_whole(descriptor_, bytes);
  if (error == 0) return;
  problem_ = error;
  lost_ += entries;
}

std::string LogFile::take_warning() {
  if (lost_ == 0 || std::exchange(warned_, true)) return {};
  return fmt::format("cannot write '{}': {}; what it will lack is said at the end", path_.string(),
                     write_problem(problem_));
}

std::string LogFile::losses() const {
  if (lost_ == 0) return {};
  return fmt::format("'{}' lacks {} of {} {}: {}", path_.string(), lost_, entries_, entries_ == 1 ? "entry" : "entries",
                     write_problem(problem_));
}

}  // namespace bonfire::base
