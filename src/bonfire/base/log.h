#pragma once
// What the library has to say beside a program's own output: one line each on stderr.
//
//   base::log_warning("bonfire launch: node {} has been silent for {:.1f} s", node, seconds);
//
//   [14:03:07 warning] bonfire launch: node 1 has been silent for 3.2 s
//   [14:03:07 warning, rank 2] ...                                            by a process that is one of several ranks
//
// The environment variable BONFIRE_LOG says from which level on lines are written: debug, info (else), warning, error
// or off; the program's commands have --log-level. Lines of several threads do not mix. What a program prints as its
// result, and the message with which it ends, are no log.

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace bonfire::base {

enum class LogLevel : uint8_t { debug, info, warning, error, off };

inline constexpr const char* kLogLevels[] = {"debug", "info", "warning", "error", "off"};
std::optional<LogLevel> parse_log_level(std::string_view word);

LogLevel log_level();
void set_log_level(LogLevel level);  // in place of BONFIRE_LOG
void set_log_rank(int rank);         // that lines name; below 0: none

// One line, where the level is high enough. `text` has no end of line of its own; one inside begins a further line.
void log(LogLevel level, std::string_view text);

// The message with which a process ends in failure, as it is and whatever the level.
void print_failure(std::string_view text);

template <class... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
  if (log_level() == LogLevel::debug) log(LogLevel::debug, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  log(LogLevel::info, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  log(LogLevel::warning, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> text, Args&&... args) {
  log(LogLevel::error, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace bonfire::base
