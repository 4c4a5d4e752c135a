#include "bonfire/runtime/tuning_record.h"

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/log.h"
#include "bonfire/runtime/build_stamp.h"

namespace bonfire::runtime {

namespace {

std::string record_path() {
  namespace fs = std::filesystem;
  auto folder = []() -> fs::path {
    if (const char* own = std::getenv("BONFIRE_CACHE")) return own;
    if (const char* xdg = std::getenv("XDG_CACHE_HOME")) return fs::path(xdg) / "bonfire";
    if (const char* home = std::getenv("HOME")) return fs::path(home) / ".cache" / "bonfire";
    return {};
  }();
  return folder.empty() ? std::string() : (folder / "tuning.json").string();
}

}  // namespace

void add_times(TimesOfNodes& times, const TimesOfNodes& more) {
  for (const auto& [node, of_node] : more) times[node].insert(of_node.begin(), of_node.end());
}

TimesOfNodes lacking(const TimesOfNodes& times, const TimesOfNodes& more) {
  TimesOfNodes result;
  for (const auto& [node, of_node] : more) {
    auto known = times.find(node);
    for (const auto& [candidate, nanoseconds] : of_node)
      if (known == times.end() || !known->second.contains(candidate)) result[node][candidate] = nanoseconds;
  }
  return result;
}

size_t count_times(const TimesOfNodes& times) {
  size_t count = 0;
  for (const auto& [node, of_node] : times) count += of_node.size();
  return count;
}

std::string to_json(const TimesOfNodes& times) {
  return nlohmann::json{{"build", build_stamp()}, {"times", times}}.dump(1);
}

std::optional<TimesOfNodes> from_json(const std::string& text) {
  try {
    nlohmann::json json = nlohmann::json::parse(text);
    auto times = json.at("times").get<TimesOfNodes>();
    if (json.value("build", "") != build_stamp()) return {};
    return times;
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[tune] not a tuning record: {}", error.what());
  }
}

TimesOfNodes read_record_file() {
  std::string path = record_path();
  if (path.empty()) return {};
  try {
    if (!base::exists(path)) return {};
    std::vector<std::byte> bytes = base::read_file(path);
    return from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).value_or(TimesOfNodes());
  } catch (const Error& error) {
    base::log_warning("bonfire: ignoring {}: {}", path, error.what());
  }
  return {};
}

void write_record_file(const TimesOfNodes& times) {
  std::string path = record_path();
  if (path.empty()) return;
  TimesOfNodes all = times;
  add_times(all, read_record_file());
  const std::string text = to_json(all);
  try {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
    base::write_file_atomically(path, chunks);
  } catch (const std::exception& error) {
    base::log_warning("bonfire: the choice of kernels is not remembered: {}", error.what());
  }
}

}  // namespace bonfire::runtime
