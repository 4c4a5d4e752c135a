#pragma once
// What one end of an encrypted connection shows, and whom it believes (docs/security.md).

#include <functional>
#include <string>

namespace bonfire::comm {

// All in PEM; all empty: nothing is encrypted.
struct Tls {
  std::string certificate = {};  // of this process, with those between it and the authority's
  std::string key = {};          // of the certificate
  std::string authorities = {};  // whose certificates are believed

  bool on() const { return !certificate.empty(); }
};

using ReadVariable = std::function<const char*(const char* name)>;  // nullptr: not set

// From the files that BONFIRE_TLS_CERT, BONFIRE_TLS_KEY and BONFIRE_TLS_CA name. ConfigError when only some are set, or
// one is not PEM.
Tls read_tls(const ReadVariable& variable);
Tls read_tls();  // of this process

// What a store's gate says of it (comm/gate.h).
inline constexpr const char* kPlainManner = "plain";
inline constexpr const char* kTlsManner = "tls";

}  // namespace bonfire::comm
