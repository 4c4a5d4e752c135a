#pragma once
// Whole files in and out. Every failure is a DataError that names the path and says what the system said:
//   [file] cannot open 'runs/best.safetensors': Permission denied

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

namespace bonfire::base {

enum class PathKind : uint8_t { nothing, file, folder, other };

// What is at the path, links followed. DataError where that cannot be found out: somebody who may not look must not be
// told that there is nothing.
PathKind kind_of(const std::filesystem::path& path);
inline bool exists(const std::filesystem::path& path) { return kind_of(path) != PathKind::nothing; }
inline bool is_folder(const std::filesystem::path& path) { return kind_of(path) == PathKind::folder; }

// Only regular files are read: a directory, a pipe or a device is an error, and opening one never blocks.
std::vector<std::byte> read_file(const std::filesystem::path& path);
std::vector<std::byte> read_file(const std::filesystem::path& path, uint64_t offset, size_t size);  // both in bytes

// A regular file as memory, read-only, pages loaded when touched. The file may be replaced meanwhile (as
// write_file_atomically does: the mapping keeps the old bytes); one that is cut short in place may end the process.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }  // valid for the life of this object

 private:
  std::span<std::byte> bytes_;
};

// Puts a file with the chunks, one after another, at `path`: either all of it is there and on the disk when this
// returns, or it throws, nothing is left behind and what was at `path` before is still there. At no time does another
// process see a part of it. The folder must exist. A link is followed; a file that is replaced hands on its mode.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::span<const std::byte>> chunks);

// A new file, written from begin to end.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);  // an error when it is there already
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&& other) noexcept;
  ~FileWriter();

  void write(std::span<const std::byte> bytes);
  uint64_t size() const { return size_; }  // bytes so far
  void finish();                           // all of it is on the disk when this returns

 private:
  void flush();

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  std::vector<std::byte> waiting_;  // to be written in large pieces
};

// What was made, renamed or removed in the folder is so on the disk too when this returns.
void sync_folder(const std::filesystem::path& folder);

}  // namespace bonfire::base
