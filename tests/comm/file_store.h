#pragma once
// A Store in a folder, for ranks that a test forks.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/comm/store.h"

namespace bonfire::testing {

class FileStore : public comm::Store {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    Lock lock(folder_);
    write(key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    wait({key}, timeout);
    Lock lock(folder_);
    return read(key);
  }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    auto deadline = std::chrono::steady_clock::now() + timeout;
    for (const std::string& key : keys)
      while (!std::filesystem::exists(file(key))) {
        if (std::chrono::steady_clock::now() > deadline) throw_error<TimeoutError>("[store] no key {}", key);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
  }
  int64_t add(const std::string& key, int64_t amount) override {
    Lock lock(folder_);
    int64_t sum = (std::filesystem::exists(file(key)) ? std::stoll(read(key)) : 0) + amount;
    write(key, std::to_string(sum));
    return sum;
  }

 private:
  struct Lock {
    explicit Lock(const std::filesystem::path& folder) : file(::open(folder.c_str(), O_RDONLY | O_CLOEXEC)) {
      ::flock(file, LOCK_EX);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() { ::close(file); }
    int file;
  };

  std::filesystem::path file(std::string key) const {
    for (char& letter : key)
      if (letter == '/') letter = '+';
    return folder_ / key;
  }
  std::string read(const std::string& key) const {
    std::ifstream stream(file(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& key, const std::string& value) const {
    std::filesystem::path fresh = file(key);
    fresh += ".new";
    std::ofstream(fresh, std::ios::binary) << value;
    std::filesystem::rename(fresh, file(key));
  }

  std::filesystem::path folder_;
};

}  // namespace bonfire::testing
