#pragma once
// A file descriptor that is closed by whoever owns it last.

#include <unistd.h>

#include <utility>

namespace bonfire::comm {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }  // to another owner

 private:
  int number_ = -1;
};

}  // namespace bonfire::comm
