#include "bonfire/comm/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/base/sha256.h"
#include "bonfire/comm/file_descriptor.h"
#include "bonfire/comm/rendezvous.h"

namespace bonfire::comm {

namespace fs = std::filesystem;

namespace {

fs::path folder() {
  for (const auto& [variable, below] :
       {std::pair{"BONFIRE_CACHE", ""}, {"XDG_CACHE_HOME", "bonfire"}, {"HOME", ".cache/bonfire"}})
    if (const char* value = std::getenv(variable); value != nullptr && *value != 0) return fs::path(value) / below;
  return {};
}

}  // namespace

bool TokenFile::needed(const Environment& environment) {
  return environment.token.empty() && environment.starter != Starter::bonfire && environment.knows_local_world &&
         environment.local_world == environment.world;
}

std::unique_ptr<TokenFile> TokenFile::of_port(int port) {
  const fs::path where = folder();
  std::error_code error;
  if (!where.empty()) fs::create_directories(where, error);
  if (where.empty() || error || ::access(where.c_str(), R_OK | W_OK | X_OK) != 0) return nullptr;
  const std::string host = base::sha256(machine_id()).substr(0, 16);  // others may have the same home
  return std::make_unique<TokenFile>(where / fmt::format("token-{}-{}", host, port));
}

void TokenFile::write(const std::string& token) {
  const fs::path made = fmt::format("{}.{}", path_.string(), ::getpid());
  ::unlink(made.c_str());
  const FileDescriptor file(::open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0 || base::uninterrupted([&] {
                          return ::write(file.get(), token.data(), token.size());
                        }) != static_cast<ssize_t>(token.size()) ||
      ::rename(made.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(made.c_str());
    throw_error<DataError>(
        "[token] cannot write '{}' for the job's other ranks: {}; or set BONFIRE_TOKEN for all of "
        "them",
        path_.string(), std::strerror(reason));
  }
  written_ = token;
}

std::optional<std::string> TokenFile::read() const {
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
      (status.st_mode & 077) != 0)
    return std::nullopt;
  char text[256];
  const ssize_t count = base::uninterrupted([&] { return ::read(file.get(), text, sizeof text); });
  if (count <= 0) return std::nullopt;
  return std::string(text, static_cast<size_t>(count));
}

TokenFile::~TokenFile() {
  if (!written_.empty() && read() == written_) ::unlink(path_.c_str());
}

}  // namespace bonfire::comm
