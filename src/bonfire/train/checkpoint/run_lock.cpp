#include "bonfire/train/checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bonfire/base/error.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/parallel/all_devices.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Who holds a lock. A process is known by its number and when it began: numbers are used again.
struct Owner {
  std::string host, boot, processes;  // boot: of its kernel; processes: the namespace in which its number counts
  int64_t process = 0, began = 0;     // began: in clock ticks of that boot; 0: not known
  uint64_t file = 0;                  // its inode: in a copy of the folder nobody holds anything
  std::string since, user, command;
};

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

// The 22nd field of /proc/N/stat; the second, the program's name in parentheses, may have spaces. 0: there is none.
int64_t began_at(int64_t process) {
  const std::string text = first_line(fmt::format("/proc/{}/stat", process));
  const size_t name_ends = text.rfind(')');
  if (name_ends == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_ends + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  int64_t began = 0;
  fields >> began;
  return began;
}

std::string now_in_words() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

uint64_t inode_of(int descriptor) {
  struct stat about {};
  return ::fstat(descriptor, &about) == 0 ? about.st_ino : 0;
}

Owner this_process(int descriptor) {
  std::error_code error;
  const char* user = std::getenv("USER");
  return {.host = comm::host_name(),
          .boot = first_line("/proc/sys/kernel/random/boot_id"),
          .processes = fs::read_symlink("/proc/self/ns/pid", error).string(),
          .process = ::getpid(),
          .began = began_at(::getpid()),
          .file = inode_of(descriptor),
          .since = now_in_words(),
          .user = user == nullptr ? fmt::format("user {}", ::getuid()) : user,
          .command = fleet::shell_text(fleet::command_words())};
}

std::string to_text(const Owner& owner) {
  const json words{{"host", owner.host},       {"boot", owner.boot},   {"processes", owner.processes},
                   {"process", owner.process}, {"began", owner.began}, {"file", owner.file},
                   {"since", owner.since},     {"user", owner.user},   {"command", owner.command}};
  return words.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

// Nothing where the file has no whole owner: it died while it wrote, or has just made the file.
std::optional<Owner> owner_in(int descriptor) {
  char text[16384];
  const ssize_t read = ::pread(descriptor, text, sizeof text, 0);
  const json words = json::parse(text, text + std::max<ssize_t>(read, 0), nullptr, false);
  try {
    return Owner{words.at("host"), words.at("boot"),  words.at("processes"), words.at("process"), words.at("began"),
                 words.at("file"), words.at("since"), words.at("user"),      words.at("command")};
  } catch (const json::exception&) {
    return {};
  }
}

std::string in_words(const Owner& owner) {
  return fmt::format("process {} of {} on {}, since {} ({})", owner.process, owner.user, owner.host, owner.since,
                     owner.command);
}

// Whether it may still be there, as far as can be known from here beside what the kernel says of the lock.
enum class Life : uint8_t { gone, here, elsewhere };
Life life_of(const Owner& owner, const Owner& self) {
  if (owner.file != self.file) return Life::gone;
  const bool same_host = owner.host == self.host;
  if (owner.boot != self.boot) return same_host ? Life::gone : Life::elsewhere;  // gone: the machine was started anew
  if (owner.processes != self.processes) return Life::gone;  // another container here: its kernel's lock is ours
  return owner.began != 0 && began_at(owner.process) == owner.began ? Life::here : Life::gone;
}

[[noreturn]] void refuse(const fs::path& run, const fs::path& file, const std::optional<Owner>& owner, Life life) {
  const std::string who = owner ? in_words(*owner) : "another process";
  if (life == Life::elsewhere)
    throw_error<ConfigError>(
        "[train] {} belongs to {}; whether that is still there cannot be seen from {}: wait for it or stop it there. "
        "If "
        "it is gone, remove {} and start this again",
        run.string(), who, comm::host_name(), file.string());
  throw_error<ConfigError>(
      "[train] {} is being trained by {}; wait for it or stop it, or begin another run (without resume)", run.string(),
      who);
}

[[noreturn]] void cannot_write(const fs::path& file) {
  throw_error<DataError>("[train] cannot write '{}', which says who trains this run: {}", file.string(),
                         std::strerror(errno));
}

// Somebody who has just given the lock back has removed the file, maybe after it was opened here.
bool is_still_at(const fs::path& path, int descriptor) {
  struct stat here {
  }, there{};
  return ::fstat(descriptor, &here) == 0 && ::stat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

// The file, open and locked.
int open_locked(const fs::path& run, const fs::path& path) {
  for (;;) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) cannot_write(path);
    const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK) {
      const std::optional<Owner> owner = owner_in(descriptor);
      ::close(descriptor);
      refuse(run, path, owner, Life::here);
    }
    if (is_still_at(path, descriptor)) return descriptor;  // locked, or on a file system without locks
    ::close(descriptor);
  }
}

}  // namespace

RunLock::RunLock(const fs::path& run) : path_(run / "lock") {
  descriptor_ = open_locked(run, path_);
  const Owner self = this_process(descriptor_);
  const std::optional<Owner> before = owner_in(descriptor_);
  const Life life = before ? life_of(*before, self) : Life::gone;
  if (life != Life::gone) {
    ::close(descriptor_);
    refuse(run, path_, before, life);
  }
  if (before) taken_over_from_ = in_words(*before);
  const std::string text = to_text(self);
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    ::close(descriptor_);
    errno = error;
    cannot_write(path_);
  }
}

RunLock::~RunLock() {
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace bonfire::train
