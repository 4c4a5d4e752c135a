#include "bonfire/comm/tls.h"

#include <cstdlib>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"

namespace bonfire::comm {

namespace {

constexpr const char* kNames[] = {"BONFIRE_TLS_CERT", "BONFIRE_TLS_KEY", "BONFIRE_TLS_CA"};

std::string read_pem(const char* name, const std::string& file) {
  std::vector<std::byte> bytes = base::read_file(file);
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.find("-----BEGIN ") == std::string::npos)
    throw_error<ConfigError>("[tls] {}: '{}' is no PEM file, which has a line -----BEGIN ...-----", name, file);
  return text;
}

}  // namespace

Tls read_tls(const ReadVariable& variable) {
  std::string parts[3];
  int count = 0;
  for (int i = 0; i < 3; ++i) {
    const char* file = variable(kNames[i]);
    if (file == nullptr || *file == 0) continue;
    parts[i] = read_pem(kNames[i], file);
    ++count;
  }
  for (int i = 0; i < 3; ++i)
    if (count > 0 && parts[i].empty())
      throw_error<ConfigError>("[tls] {} is not set, though its companions are; TLS needs {}, {} and {}", kNames[i],
                               kNames[0], kNames[1], kNames[2]);
  return {parts[0], parts[1], parts[2]};
}

Tls read_tls() {
  return read_tls([](const char* name) { return std::getenv(name); });
}

}  // namespace bonfire::comm
