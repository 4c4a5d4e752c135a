#include "bonfire/runtime/tuning.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/build_stamp.h"
#include "bonfire/runtime/measure.h"
#include "bonfire/runtime/timing_peers.h"
#include "bonfire/runtime/tuning_record.h"

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

// The mutex is never held while kernels run: a queue may be busy with a step that waits for another rank of this
// process, which may have to look something up before it comes.
struct Record {
  std::mutex mutex;
  TimesOfNodes times;
  std::map<Device, std::string> devices;  // what else times depend on: "cpu/2 Intel(R) Xeon(R) ..."
  double seconds = 0;                     // spent on measuring
  bool loaded = false, changed = false;

  std::set<std::string> in_work;       // nodes that a thread is timing, or for whose times it waits
  std::condition_variable work_ended;  // of one of these
  std::weak_ptr<TimingPeers> peers;    // other processes that time for this one
  std::map<std::string, int> read;     // entries of a node's list
  int chapter = 0;                     // lists begin anew with each share_tuning()
};

Record& record() {
  static Record instance;
  return instance;
}

void load_once(Record& all) {
  if (!all.loaded) all.times = read_record_file();
  all.loaded = true;
}

std::string device_text(Record& all, Device device) {
  if (device.type != DeviceType::cpu) return " " + queue_of(device).model();
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

TimedNode timed_reorder(Graph& scratch, const Reorder& what) {
  const GraphNode* node =
      scratch.add(reorder, {{scratch.add_input(LeafKind::feed, what.spec), 0}}, reorder_attributes(what.from, what.to));
  return {node, candidates_for({*node, {&what.from, 1}})};
}

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

// Seconds that measuring takes are counted, whoever wants to know.
Times measure_times(Record& all, const GraphNode& node, const std::vector<Candidate>& candidates) {
  auto begin = std::chrono::steady_clock::now();
  const std::vector<double> measured = measure(node, candidates);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  Times times;
  for (size_t i = 0; i < candidates.size(); ++i) times.emplace(candidates[i].name, measured[i]);
  std::lock_guard lock(all.mutex);
  all.seconds += seconds;
  return times;
}

// What this thread works on; while it lives, no other one does.
class Work {
 public:
  Work(Record& all, std::string key) : all_(all), key_(std::move(key)) { all_.in_work.insert(key_); }
  ~Work() {
    std::lock_guard lock(all_.mutex);
    all_.in_work.erase(key_);
    all_.work_ended.notify_all();
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  Record& all_;
  std::string key_;
};

// What a node's list has next, by whoever is the first to take it. Nothing when another rank has taken it, and this one
// does not wait.
std::optional<Times> next_entry(Record& all, TimingPeers& peers, const std::string& entry, const GraphNode& node,
                                const std::vector<Candidate>& missing, bool waits) {
  if (!peers.take(entry)) return waits ? std::optional(peers.wait(entry)) : std::nullopt;
  try {
    Times times = measure_times(all, node, missing);
    peers.set(entry, times);
    return times;
  } catch (...) {
    peers.set(entry, {});  // somebody else may succeed
    throw;
  }
}

// What the root has given, on all ranks.
std::string broadcast(comm::Group& group, std::string text, int root) {
  auto length = static_cast<int64_t>(text.size());
  group.broadcast({&length, 1, DType::i64}, root);
  text.resize(static_cast<size_t>(length));
  group.broadcast({text.data(), text.size(), DType::u8}, root);
  return text;
}

// Until the record has all candidates; or, without waiting, unless another rank or thread sees to it.
void learn(Record& all, const std::string& key, const GraphNode& node, const std::vector<Candidate>& candidates,
           bool waits) {
  bool idle = false;
  for (;;) {
    std::unique_lock lock(all.mutex);
    load_once(all);
    const std::vector<Candidate> missing = missing_in(all.times[key], candidates);
    if (missing.empty()) return;
    if (all.in_work.contains(key)) {
      if (!waits) return;
      all.work_ended.wait(lock, [&] { return !all.in_work.contains(key); });
      continue;
    }
    if (!idle) {  // what runs there may wait for a rank that is going to wait for these times
      lock.unlock();
      queue_of(node.device()).synchronize();
      idle = true;
      continue;
    }
    const Work work(all, key);
    const auto peers = all.peers.lock();
    const std::string entry = fmt::format("tuning/{}/{}/{}/{}", build_stamp(), all.chapter, key, all.read[key]);
    lock.unlock();
    std::optional<Times> times;
    if (peers)
      times = next_entry(all, *peers, entry, node, missing, waits);
    else
      times = measure_times(all, node, missing);
    if (!times) return;
    const std::lock_guard relock(all.mutex);
    if (peers) ++all.read[key];
    all.times[key].insert(times->begin(), times->end());
    all.changed = true;
  }
}

}  // namespace

std::vector<double> candidate_times(const GraphNode& node, const std::vector<Candidate>& candidates) {
  Mode how = mode();
  if (how == Mode::off) return {};
  Record& all = record();
  const std::string key = key_of(all, node);
  if (how == Mode::full) learn(all, key, node, candidates, true);
  std::lock_guard lock(all.mutex);
  load_once(all);
  const auto known = all.times.find(key);
  if (known == all.times.end()) return {};
  std::vector<double> times;
  for (const Candidate& candidate : candidates) {
    auto found = known->second.find(candidate.name);
    if (found == known->second.end()) return {};
    times.push_back(found->second);
  }
  return times;
}

void share_out_timing(std::span<const TimedNode> nodes) {
  if (mode() != Mode::full) return;
  Record& all = record();
  std::set<std::string> seen;
  for (const auto& [node, candidates] : nodes)
    if (const std::string key = key_of(all, *node); seen.insert(key).second) learn(all, key, *node, candidates, false);
}

bool timing_is_shared() {
  std::lock_guard lock(record().mutex);
  return record().peers.lock() != nullptr;
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
  const TimedNode timed = timed_reorder(scratch, {spec, from, to});
  std::vector<double> times = candidate_times(*timed.node, timed.candidates);
  constexpr double kGuess = 0.3;  // nanoseconds a byte
  return times.empty() ? kGuess * static_cast<double>(spec.bytes()) : times[0];
}

void share_out_reorders(std::span<const Reorder> reorders) {
  if (!timing_is_shared()) return;
  Graph scratch;
  std::vector<TimedNode> nodes;
  for (const Reorder& one : reorders)
    if (!same_places(one.spec.shape, one.from, one.to)) nodes.push_back(timed_reorder(scratch, one));
  share_out_timing(nodes);
}

const Op& reorder_op() { return reorder; }

Attributes reorder_attributes(const Layout& from, const Layout& to) {
  return {{"from_order", from.order}, {"from_block", from.block}, {"to_order", to.order}, {"to_block", to.block}};
}

void save_tuning() {
  Record& all = record();
  TimesOfNodes times;
  {
    std::lock_guard lock(all.mutex);
    if (!std::exchange(all.changed, false)) return;
    times = all.times;
  }
  write_record_file(times);  // what other processes have measured is not taken from there: other ranks would not
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
  return to_json(all.times);
}

bool set_tuning_record(const std::string& json) {
  std::optional<TimesOfNodes> times = from_json(json);
  if (!times) return false;
  Record& all = record();
  std::lock_guard lock(all.mutex);
  all.loaded = true;
  all.times = std::move(*times);
  return true;
}

// In turn, each rank gives what those before it have not given: mostly there is one that gives something.
void share_tuning(comm::Group& group) {
  Record& all = record();
  TimesOfNodes own, agreed;
  {
    std::lock_guard lock(all.mutex);
    load_once(all);
    own = all.times;
  }
  std::vector<int64_t> counts(static_cast<size_t>(group.size()));
  for (;;) {
    const TimesOfNodes mine = lacking(agreed, own);
    const auto count = static_cast<int64_t>(count_times(mine));
    group.all_gather({&count, 1, DType::i64}, {counts.data(), counts.size(), DType::i64});
    const auto giver = std::find_if(counts.begin(), counts.end(), [](int64_t other) { return other > 0; });
    if (giver == counts.end()) break;
    const std::string text = broadcast(group, to_json(mine), static_cast<int>(giver - counts.begin()));
    if (std::optional<TimesOfNodes> given = from_json(text)) add_times(agreed, *given);
  }
  std::lock_guard lock(all.mutex);
  add_times(agreed, all.times);  // of a thread that was not asked
  all.times = std::move(agreed);
  all.read.clear();
  ++all.chapter;
}

std::shared_ptr<TimingPeers> share_timing(comm::Group& group, std::shared_ptr<comm::Store> store,
                                          std::chrono::milliseconds timeout) {
  share_tuning(group);
  auto peers = std::make_shared<TimingPeers>(std::move(store), timeout);
  std::lock_guard lock(record().mutex);
  record().peers = peers;
  return peers;
}

}  // namespace bonfire::runtime
