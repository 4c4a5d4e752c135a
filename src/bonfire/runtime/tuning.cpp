#include "bonfire/runtime/tuning.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/build_stamp.h"
#include "bonfire/runtime/measure.h"

namespace bonfire::runtime {

namespace {

enum class Mode { off, cached, full };

Mode mode() {
  const char* text = std::getenv("BONFIRE_TUNE");
  std::string_view name = text == nullptr ? "full" : text;
  if (name == "off") return Mode::off;
  if (name == "cached") return Mode::cached;
  if (name == "full") return Mode::full;
  throw_error<ConfigError>("[tune] BONFIRE_TUNE is '{}'; use off, cached or full", name);
}

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

using Times = std::map<std::string, double>;  // candidate → nanoseconds

// The mutex is never held while kernels run: a queue may be busy with a step that waits for another rank of this
// process, which may have to look something up before it comes.
struct Record {
  std::mutex mutex;
  std::map<std::string, Times> times;
  std::map<Device, std::string> devices;  // what else times depend on: "cpu/2 Intel(R) Xeon(R) ..."
  double seconds = 0;                     // spent on measuring
  bool loaded = false, changed = false;
};

Record& record() {
  static Record instance;
  return instance;
}

std::map<std::string, Times> parse(const std::string& text) {
  std::map<std::string, Times> times;
  try {
    nlohmann::json json = nlohmann::json::parse(text);
    for (const auto& [key, value] : json.at("times").items()) times[key] = value.get<Times>();
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[tune] not a tuning record: {}", error.what());
  }
  return times;
}

// What the file holds. A damaged or missing one, or one of another build, holds nothing: that means measuring again.
std::map<std::string, Times> read_record() {
  std::string path = record_path();
  if (path.empty() || !std::filesystem::exists(path)) return {};
  try {
    std::vector<std::byte> bytes = base::read_file(path);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::map<std::string, Times> times = parse(text);
    if (nlohmann::json::parse(text).value("build", "") == build_stamp()) return times;
  } catch (const Error& error) {
    std::fprintf(stderr, "bonfire: ignoring %s: %s\n", path.c_str(), error.what());
  }
  return {};
}

void load_once(Record& all) {
  if (!all.loaded) all.times = read_record();
  all.loaded = true;
}

std::string device_text(Record& all, Device device) {
  if (device.type != DeviceType::cpu) return " cuda";
  {
    std::lock_guard lock(all.mutex);
    if (auto known = all.devices.find(device); known != all.devices.end()) return known->second;
  }
  int threads = 0;
  queue_of(device).run_now([&](const Run& run) { threads = run.threads->size(); });
  std::string text = " cpu/" + std::to_string(threads) + processor_name();
  std::lock_guard lock(all.mutex);
  return all.devices[device] = text;
}

std::string key_of(Record& all, const GraphNode& node) {
  std::string key = std::string(node.name()) + " {" + to_string(node.attributes) + "}";
  for (const GraphValue& input : node.inputs)
    key += " " + std::string(name_of(input.spec().dtype)) + to_string(input.spec().shape);
  return key + device_text(all, node.device());
}

OutputSpecs infer_reorder(const InferContext& context) { return {context.input(0)}; }

const Op& reorder = register_op({.name = "reorder", .infer = infer_reorder});

// What the record lacks, each name once.
std::vector<Candidate> missing_in(const Times& known, const std::vector<Candidate>& candidates) {
  std::vector<Candidate> missing;
  for (const Candidate& candidate : candidates) {
    auto same = [&](const Candidate& other) { return other.name == candidate.name; };
    if (!known.contains(candidate.name) && std::none_of(missing.begin(), missing.end(), same))
      missing.push_back(candidate);
  }
  return missing;
}

}  // namespace

std::vector<double> candidate_times(const GraphNode& node, const std::vector<Candidate>& candidates) {
  Mode how = mode();
  if (how == Mode::off) return {};
  Record& all = record();
  const std::string key = key_of(all, node);
  std::unique_lock lock(all.mutex);
  load_once(all);
  if (auto missing = missing_in(all.times[key], candidates); how == Mode::full && !missing.empty()) {
    lock.unlock();
    auto begin = std::chrono::steady_clock::now();
    std::vector<double> measured = measure(node, missing);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    lock.lock();
    all.seconds += seconds;
    // Another thread may have measured them meanwhile: what was there first is everyone's.
    for (size_t i = 0; i < missing.size(); ++i)
      all.changed |= all.times[key].emplace(missing[i].name, measured[i]).second;
  }
  const Times& known = all.times[key];
  std::vector<double> times;
  for (const Candidate& candidate : candidates) {
    auto found = known.find(candidate.name);
    if (found == known.end()) return {};
    times.push_back(found->second);
  }
  return times;
}

size_t pick_candidate(const GraphNode& node, const std::vector<Candidate>& candidates,
                      std::span<const double> reorder_nanoseconds) {
  if (candidates.size() == 1) return 0;
  std::vector<double> times = candidate_times(node, candidates);
  size_t best = 0;
  double best_cost = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    double cost = reorder_nanoseconds[i] + (times.empty() ? 0 : times[i]);
    if (i == 0 || cost < best_cost) {
      best = i;
      best_cost = cost;
    }
  }
  return best;
}

double reorder_nanoseconds(const TensorSpec& spec, const Layout& from, const Layout& to) {
  if (same_places(spec.shape, from, to)) return 0;
  Graph scratch;
  const GraphNode* node =
      scratch.add(reorder, {{scratch.add_input(LeafKind::feed, spec), 0}}, reorder_attributes(from, to));
  std::vector<double> times = candidate_times(*node, candidates_for({*node, {&from, 1}}));
  constexpr double kGuess = 0.3;  // nanoseconds a byte
  return times.empty() ? kGuess * static_cast<double>(spec.bytes()) : times[0];
}

const Op& reorder_op() { return reorder; }

Attributes reorder_attributes(const Layout& from, const Layout& to) {
  return {{"from_order", from.order}, {"from_block", from.block}, {"to_order", to.order}, {"to_block", to.block}};
}

void save_tuning() {
  Record& all = record();
  std::lock_guard lock(all.mutex);
  std::string path = record_path();
  if (!all.changed || path.empty()) return;
  all.changed = false;
  // Another process may have measured other nodes meanwhile.
  for (const auto& [key, others] : read_record()) all.times[key].insert(others.begin(), others.end());
  std::string text = nlohmann::json{{"build", build_stamp()}, {"times", all.times}}.dump(1);
  try {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
    base::write_file_atomically(path, chunks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bonfire: the choice of kernels is not remembered: %s\n", error.what());
  }
}

void reload_tuning() {
  Record& all = record();
  std::lock_guard lock(all.mutex);
  all.times.clear();
  all.loaded = all.changed = false;
}

double tuning_seconds() {
  Record& all = record();
  std::lock_guard lock(all.mutex);
  return all.seconds;
}

std::string tuning_record() {
  Record& all = record();
  std::lock_guard lock(all.mutex);
  load_once(all);
  return nlohmann::json{{"build", build_stamp()}, {"times", all.times}}.dump();
}

void set_tuning_record(const std::string& json) {
  std::map<std::string, Times> times = parse(json);
  Record& all = record();
  std::lock_guard lock(all.mutex);
  all.loaded = true;
  all.times = std::move(times);
}

void share_tuning(comm::Group& group) {
  const std::string kind = build_stamp() + "\n" + processor_name();
  std::string text = group.rank() == 0 ? nlohmann::json{{"kind", kind}, {"record", tuning_record()}}.dump() : "";
  auto length = static_cast<int64_t>(text.size());
  group.broadcast({&length, 1, DType::i64}, 0);
  text.resize(static_cast<size_t>(length));
  group.broadcast({text.data(), text.size(), DType::u8}, 0);
  if (group.rank() == 0) return;
  nlohmann::json json = nlohmann::json::parse(text);
  if (json.at("kind") == kind) set_tuning_record(json.at("record").get<std::string>());
}

}  // namespace bonfire::runtime
