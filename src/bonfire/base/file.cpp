#include "bonfire/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/base/log_file.h"
#include "bonfire/base/private_file.h"

namespace bonfire::base {

namespace fs = std::filesystem;

namespace {

// Network disks may be slow to answer, and a signal may come meanwhile.
int open_file(const fs::path& path, int flags, mode_t mode = 0666) {
  return uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); });
}

[[noreturn]] void fail(std::string_view doing, const fs::path& path, int error) {
  throw_error<DataError>("[file] cannot {} '{}': {}", doing, path.string(), std::generic_category().message(error));
}

[[noreturn]] void fail_to_write(std::string_view doing, const fs::path& path, int error) {
  throw_error<DataError>("[file] cannot {} '{}': {}", doing, path.string(), write_problem(error));
}

// With the answer: network disks report errors here. A call that a signal interrupted has closed it.
int close_file(int number) { return ::close(number) == 0 || errno == EINTR ? 0 : -1; }

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int close() { return close_file(std::exchange(number_, -1)); }

 private:
  int number_;
};

struct OpenFile {
  Descriptor descriptor;
  uint64_t size;  // bytes
};

OpenFile open_regular(const fs::path& path) {
  // O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
  Descriptor descriptor(open_file(path, O_RDONLY | O_NONBLOCK));
  if (descriptor.get() < 0) fail("open", path, errno);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) fail("examine", path, errno);
  if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
  if (!S_ISREG(status.st_mode))
    throw_error<DataError>("[file] '{}' is a pipe, socket or device, expected a regular file", path.string());
  return {std::move(descriptor), static_cast<uint64_t>(status.st_size)};
}

std::vector<std::byte> read_range(const OpenFile& file, const fs::path& path, uint64_t offset, size_t size) {
  std::vector<std::byte> bytes(size);
  size_t done = 0;
  while (done < size) {
    ssize_t count = uninterrupted([&] {
      return ::pread(file.descriptor.get(), bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    });
    if (count < 0) fail("read", path, errno);
    if (count == 0)
      throw_error<DataError>("[file] '{}' became shorter while it was read: {} of {} bytes", path.string(), done, size);
    done += static_cast<size_t>(count);
  }
  return bytes;
}

void write_all(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    ssize_t count = uninterrupted([&] { return ::write(descriptor, bytes.data(), bytes.size()); });
    if (count < 0) fail_to_write("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

// A new file that is removed again unless it takes its target's place.
class TemporaryFile {
 public:
  // The name does not contain the target's, which may already be as long as names can be. Writers in the same folder,
  // threads or hosts, and the remains of a killed process are told apart by O_EXCL alone.
  TemporaryFile(const fs::path& folder, const fs::path& target, mode_t mode) {
    for (int attempt = 0; descriptor_.get() < 0; ++attempt) {
      path_ = folder / fmt::format(".bonfire-{}-{}.tmp", ::getpid(), attempt);
      descriptor_ = Descriptor(open_file(path_, O_WRONLY | O_CREAT | O_EXCL, mode));
      if (descriptor_.get() < 0 && (errno != EEXIST || attempt == 10000)) fail_to_write("create", target, errno);
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void set_mode(mode_t mode, const fs::path& target) {
    if (::fchmod(descriptor_.get(), mode) != 0) fail("set the mode of", target, errno);
  }

  void write(std::span<const std::byte> bytes, const fs::path& target) { write_all(descriptor_.get(), bytes, target); }

  void take_place_of(const fs::path& target) {
    // Before the rename: otherwise a power cut can leave the new name with no bytes behind it.
    if (uninterrupted([&] { return ::fsync(descriptor_.get()); }) != 0) fail_to_write("write to disk", target, errno);
    if (descriptor_.close() != 0) fail("close", target, errno);
    if (::rename(path_.c_str(), target.c_str()) != 0) fail("replace", target, errno);
    path_.clear();
  }

 private:
  fs::path path_;
  Descriptor descriptor_{-1};
};

fs::path follow_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  fs::path target = fs::canonical(path, error);
  if (error) fail("follow the link", path, error.value());
  return target;
}

void write_new_file(const fs::path& path, std::span<const std::span<const std::byte>> chunks, mode_t mode) {
  fs::path target = follow_link(path);
  fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  struct stat status {};
  bool exists = ::stat(target.c_str(), &status) == 0;
  // Renaming over a device such as /dev/null would succeed and destroy it.
  if (exists && !S_ISREG(status.st_mode))
    throw_error<DataError>("[file] cannot replace '{}': it is not a regular file", target.string());
  // Opened first: whatever keeps the folder from being synced shows before anything has changed.
  Descriptor folder_descriptor(open_file(folder, O_RDONLY | O_DIRECTORY));
  if (folder_descriptor.get() < 0) fail("open the folder for", target, errno);

  TemporaryFile temporary(folder, target, mode);
  if (exists) temporary.set_mode(status.st_mode & 07777, target);
  for (std::span<const std::byte> chunk : chunks) temporary.write(chunk, target);
  temporary.take_place_of(target);
  // Some file systems cannot sync a folder and say EINVAL; there the rename is as durable as it gets.
  if (uninterrupted([&] { return ::fsync(folder_descriptor.get()); }) != 0 && errno != EINVAL)
    fail("write to disk the folder of", target, errno);
}

// Of this process. umask() would set another one for a moment, for all its threads.
mode_t current_umask() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Umask:")) return static_cast<mode_t>(std::stoul(line.substr(6), nullptr, 8));
  return 022;
}

}  // namespace

PathKind kind_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return PathKind::nothing;
    fail("look at", path, errno);
  }
  if (S_ISREG(status.st_mode)) return PathKind::file;
  return S_ISDIR(status.st_mode) ? PathKind::folder : PathKind::other;
}

std::vector<std::byte> read_file(const fs::path& path) {
  OpenFile file = open_regular(path);
  return read_range(file, path, 0, file.size);
}

std::vector<std::byte> read_file(const fs::path& path, uint64_t offset, size_t size) {
  OpenFile file = open_regular(path);
  if (offset > file.size || size > file.size - offset)
    throw_error<DataError>("[file] '{}' holds {} bytes, {} bytes from offset {} were asked for", path.string(),
                           file.size, size, offset);
  return read_range(file, path, offset, size);
}

MappedFile::MappedFile(const fs::path& path) {
  OpenFile file = open_regular(path);
  if (file.size == 0) return;  // mmap refuses an empty range
  void* start = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
  if (start == MAP_FAILED) fail("map", path, errno);
  bytes_ = {static_cast<std::byte*>(start), file.size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void write_file_atomically(const fs::path& path, std::span<const std::span<const std::byte>> chunks) {
  write_new_file(path, chunks, 0666);
}

mode_t mode_by_umask(mode_t asked, mode_t umask) {
  const bool usual = umask == 022 || umask == 002;
  return asked & ~(usual ? 077 : umask);
}

void write_private_file(const fs::path& path, std::span<const std::span<const std::byte>> chunks) {
  write_new_file(path, chunks, mode_by_umask(0666, current_umask()));
}

bool make_private_folder(const fs::path& path, std::error_code& error) {
  error.clear();
  if (::mkdir(path.c_str(), mode_by_umask(0777, current_umask())) == 0) return true;
  if (int found = errno; found != EEXIST || !is_folder(path)) error = {found, std::generic_category()};
  return false;
}

FileWriter::FileWriter(fs::path path)
    : path_(std::move(path)), descriptor_(open_file(path_, O_WRONLY | O_CREAT | O_EXCL)) {
  if (descriptor_ < 0) fail_to_write("create", path_, errno);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      waiting_(std::move(other.waiting_)) {}

FileWriter& FileWriter::operator=(FileWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(waiting_, other.waiting_);
  return *this;
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  constexpr size_t kLarge = size_t{1} << 20;  // bytes of one write
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
  size_ += bytes.size();
  if (waiting_.size() >= kLarge) flush();
}

void FileWriter::flush() {
  write_all(descriptor_, waiting_, path_);
  waiting_.clear();
}

void FileWriter::finish() {
  flush();
  if (uninterrupted([&] { return ::fsync(descriptor_); }) != 0) fail_to_write("write to disk", path_, errno);
  if (close_file(std::exchange(descriptor_, -1)) != 0) fail("close", path_, errno);
}

void sync_folder(const fs::path& folder) {
  Descriptor descriptor(open_file(folder, O_RDONLY | O_DIRECTORY));
  if (descriptor.get() < 0) fail("open the folder", folder, errno);
  // Some file systems cannot sync a folder and say EINVAL.
  if (uninterrupted([&] { return ::fsync(descriptor.get()); }) != 0 && errno != EINVAL)
    fail("write to disk the folder", folder, errno);
}

}  // namespace bonfire::base
