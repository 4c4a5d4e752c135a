#pragma once
// A token that rank 0 makes for a job whose starter gives it none, and hands to the other ranks of its host in a file
// that only its user can read. (Across hosts there is no such way: there the user sets BONFIRE_TOKEN.)

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "bonfire/comm/environment.h"

namespace bonfire::comm {

class TokenFile {
 public:
  // Whether the ranks of a job can hand each other one: it has none, and all of them are on this host.
  static bool needed(const Environment& environment);

  // In the folder of BONFIRE_CACHE, XDG_CACHE_HOME/bonfire or ~/.cache/bonfire, named after this host and the port of
  // the store. Nothing where there is no such folder.
  static std::unique_ptr<TokenFile> of_port(int port);

  explicit TokenFile(std::filesystem::path path) : path_(std::move(path)) {}
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  ~TokenFile();  // takes away what it has written

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& token);     // DataError where it cannot
  std::optional<std::string> read() const;  // nothing: it is not there, or not this user's own and private

 private:
  std::filesystem::path path_;
  std::string written_;
};

}  // namespace bonfire::comm
