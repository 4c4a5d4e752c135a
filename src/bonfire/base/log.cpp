#include "bonfire/base/log.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <string>

namespace bonfire::base {

namespace {

std::atomic<int> rank_of_lines{-1};

void write_line(LogLevel level, std::string_view text) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::string line = fmt::format("[{:02}:{:02}:{:02} {}", local.tm_hour, local.tm_min, local.tm_sec,
                                 kLogLevels[static_cast<size_t>(level)]);
  if (const int rank = rank_of_lines; rank >= 0) line += fmt::format(", rank {}", rank);
  line += "] ";
  line += text;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // at once: other threads and processes write there too
}

LogLevel level_of_environment() {
  const char* word = std::getenv("BONFIRE_LOG");
  if (word == nullptr || *word == '\0') return LogLevel::info;
  if (const std::optional<LogLevel> level = parse_log_level(word)) return *level;
  write_line(
      LogLevel::error,
      fmt::format("[log] BONFIRE_LOG is '{}', expected debug, info, warning, error or off; it is info now", word));
  return LogLevel::info;
}

std::atomic<LogLevel>& lowest_level() {
  static std::atomic<LogLevel> level{level_of_environment()};
  return level;
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view word) {
  const auto* found = std::find(std::begin(kLogLevels), std::end(kLogLevels), word);
  if (found == std::end(kLogLevels)) return {};
  return static_cast<LogLevel>(found - std::begin(kLogLevels));
}

LogLevel log_level() { return lowest_level(); }
void set_log_level(LogLevel level) { lowest_level() = level; }
void set_log_rank(int rank) { rank_of_lines = rank; }

void print_failure(std::string_view text) {
  const std::string line = fmt::format("{}\n", text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void log(LogLevel level, std::string_view text) {
  if (level >= log_level() && level != LogLevel::off) write_line(level, text);
}

}  // namespace bonfire::base
