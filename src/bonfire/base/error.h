#pragma once
// Errors that a user or the world can cause, and the check for what only a bug can cause.
//
// A message says where, what was found, what was expected and what to do:
//   throw_error<ShapeError>("[conv2d] input has {} channels, weight expects {}", 3, 1);

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace bonfire {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ConfigError : public Error {  // a setting, flag or file that cannot be used
 public:
  using Error::Error;
};
class ShapeError : public Error {  // shapes or element types that do not fit an op
 public:
  using Error::Error;
};
class DeviceError : public Error {  // a device that is missing, full or failing
 public:
  using Error::Error;
};
class CommError : public Error {  // a peer that is unreachable, dead or different
 public:
  using Error::Error;
};
class TimeoutError : public Error {
 public:
  using Error::Error;
};
class DataError : public Error {  // bytes from outside that are damaged or not what they claim
 public:
  using Error::Error;
};
class GraphError : public Error {  // a history used twice, a value read where it cannot be
 public:
  using Error::Error;
};

template <class E, class... Args>
[[noreturn]] void throw_error(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::vformat(format, fmt::make_format_args(args...)));
}

namespace base {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace base

}  // namespace bonfire

// A broken invariant: throws std::logic_error with file and line. Never for bad input.
#define BONFIRE_CHECK(condition, ...)                                                                          \
  do {                                                                                                         \
    if (!(condition)) [[unlikely]]                                                                             \
      ::bonfire::base::check_failed(__FILE__, __LINE__, #condition, ::bonfire::base::check_text(__VA_ARGS__)); \
  } while (false)

namespace bonfire::base {
inline std::string check_text() { return {}; }
template <class... Args>
std::string check_text(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::vformat(format, fmt::make_format_args(args...));
}
}  // namespace bonfire::base
