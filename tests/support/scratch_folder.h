#pragma once
// What tests of files share: an own folder for each test, and a moment without root's right to open everything.

#include <sys/fsuid.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace bonfire::testing {

// A new empty folder that goes, with all that is in it, at the end of the scope.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "bonfire-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  std::filesystem::path put(std::string_view name, std::string_view content) const {
    std::filesystem::remove(path_ / name);  // file systems may flush a file that is cut and written anew: slow
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }
  std::string get(std::string_view name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  size_t count() const {  // files, hidden ones too
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

// While it lives, this thread opens files as nobody would; an ordinary user stays who he is.
class WithoutPrivileges {
 public:
  WithoutPrivileges() : before_(::setfsuid(::geteuid() == 0 ? 65534 : ::geteuid())) {}
  WithoutPrivileges(const WithoutPrivileges&) = delete;
  WithoutPrivileges& operator=(const WithoutPrivileges&) = delete;
  ~WithoutPrivileges() { ::setfsuid(static_cast<uid_t>(before_)); }

 private:
  int before_;
};

}  // namespace bonfire::testing
