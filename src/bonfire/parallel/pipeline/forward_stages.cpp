#include "bonfire/parallel/pipeline/forward_stages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "bonfire/base/error.h"
#include "bonfire/runtime/profile.h"

namespace bonfire::pipeline {
namespace {

// A module as the forward pass meets it.
struct Visited {
  std::string path;
  size_t first = 0, last = 0;  // of its nodes, among those with a path
  double cost = 0;             // of forward and backward
};

std::vector<Visited> modules_of(const Graph& traced) {
  std::vector<Visited> modules;
  std::unordered_map<std::string, size_t> places;
  std::unordered_map<int, size_t> module_of;  // number of a node → module
  size_t position = 0;
  for (const GraphNode& node : traced.nodes()) {
    if (node.is_input() || node.path.empty() || node.phase != Phase::forward) continue;
    auto [place, fresh] = places.emplace(node.path, modules.size());
    if (fresh) modules.push_back({.path = node.path, .first = position, .last = position});
    modules[place->second].last = position++;
    module_of[node.number] = place->second;
  }
  // As long as it takes to read so many bytes, a core multiplies about so many numbers.
  constexpr double kOperationsOfByte = 8;
  for (const GraphNode& node : traced.nodes()) {
    auto found = module_of.find(node.phase == Phase::forward ? node.number : node.origin);
    if (node.is_input() || found == module_of.end() || node.op->has(Trait::view)) continue;
    double bytes = 0;
    for (const GraphValue& input : node.inputs) bytes += static_cast<double>(input.spec().bytes());
    for (const TensorSpec& output : node.outputs) bytes += static_cast<double>(output.bytes());
    modules[found->second].cost += runtime::operations_of(node) + kOperationsOfByte * bytes;
  }
  return modules;
}

bool is_in(const std::string& path, const std::string& module) {
  return path == module || (path.starts_with(module) && path[module.size()] == '.');
}

std::string list_of(const std::vector<Visited>& modules) {
  constexpr size_t kMost = 40;
  std::vector<std::string> names;
  for (const Visited& one : modules)
    if (names.size() < kMost) names.push_back(one.path);
  return fmt::format("{}{}", fmt::join(names, ", "),
                     modules.size() > kMost ? fmt::format(" and {} more", modules.size() - kMost) : "");
}

// The first module of each further stage.
std::vector<size_t> found_in(const std::vector<std::string>& firsts, const std::vector<Visited>& modules) {
  std::vector<size_t> begins;
  for (const std::string& first : firsts) {
    auto found = std::find_if(modules.begin(), modules.end(), [&](const Visited& v) { return is_in(v.path, first); });
    if (found == modules.end())
      throw_error<ConfigError>("[pipeline] cut names '{}', and the step runs through no such module; there are {}",
                               first, list_of(modules));
    const auto place = static_cast<size_t>(found - modules.begin());
    if (place == 0)
      throw_error<ConfigError>("[pipeline] cut names '{}', with which the first stage would begin too: it is empty",
                               first);
    if (!begins.empty() && place == begins.back())
      throw_error<ConfigError>("[pipeline] cut names '{}' where a stage begins already: the one between is empty",
                               first);
    if (!begins.empty() && place < begins.back())
      throw_error<ConfigError>(
          "[pipeline] cut names '{}' after '{}', and the step runs through it before; change places", first,
          modules[begins.back()].path);
    begins.push_back(place);
  }
  return begins;
}

// Whether modules before and from `begin` on are apart.
bool may_begin(size_t begin, const std::vector<Visited>& modules) {
  return std::all_of(modules.begin(), modules.begin() + static_cast<std::ptrdiff_t>(begin),
                     [&](const Visited& one) { return one.last < modules[begin].first; });
}

// Where the costliest stage costs least: `best[k][i]` is that of the first i modules in k + 1 stages.
std::vector<size_t> balanced(const std::vector<Visited>& modules, int stages) {
  std::vector<size_t> ends;  // where a stage may end
  for (size_t i = 1; i < modules.size(); ++i)
    if (may_begin(i, modules)) ends.push_back(i);
  ends.push_back(modules.size());
  if (modules.empty() || ends.size() < static_cast<size_t>(stages))
    throw_error<ConfigError>("[pipeline] the step can be cut into {} stages at most, {} were asked for: {}",
                             modules.empty() ? 0 : ends.size(), stages,
                             modules.empty() ? "no module makes a node" : list_of(modules));
  std::vector<double> until{0};
  for (const Visited& one : modules) until.push_back(until.back() + one.cost);
  const size_t count = ends.size();
  std::vector<std::vector<double>> best(static_cast<size_t>(stages), std::vector<double>(count));
  std::vector<std::vector<size_t>> before(static_cast<size_t>(stages), std::vector<size_t>(count));
  for (size_t e = 0; e < count; ++e) best[0][e] = until[ends[e]];
  for (size_t k = 1; k < static_cast<size_t>(stages); ++k)
    for (size_t e = 0; e < count; ++e) {
      best[k][e] = std::numeric_limits<double>::infinity();
      for (size_t b = k - 1; b < e; ++b) {
        const double worst = std::max(best[k - 1][b], until[ends[e]] - until[ends[b]]);
        if (worst < best[k][e]) {
          best[k][e] = worst;
          before[k][e] = b;
        }
      }
    }
  std::vector<size_t> begins;
  size_t end = count - 1;
  for (auto k = static_cast<size_t>(stages) - 1; k > 0; --k) {
    end = before[k][end];
    begins.insert(begins.begin(), ends[end]);
  }
  return begins;
}

}  // namespace

ForwardStages::ForwardStages(const Graph& traced, const CutOptions& options) {
  const std::vector<Visited> modules = modules_of(traced);
  if (options.firsts && options.firsts->size() + 1 != static_cast<size_t>(options.stages))
    throw_error<ConfigError>(
        "[pipeline] cut names the first modules of {} further stages ({}), and the mesh has {} stages: name {}",
        options.firsts->size(), fmt::join(*options.firsts, ", "), options.stages, options.stages - 1);
  const std::vector<size_t> begins =
      options.firsts ? found_in(*options.firsts, modules) : balanced(modules, options.stages);
  for (size_t i = 0; i < begins.size(); ++i) {
    firsts_.push_back(options.firsts ? (*options.firsts)[i] : modules[begins[i]].path);
    for (size_t m = 0; m < begins[i]; ++m)
      if (modules[m].last >= modules[begins[i]].first)
        throw_error<ConfigError>(
            "[pipeline] the cut at '{}' goes through '{}', which computes on both sides of it; cut before that module "
            "or "
            "after it",
            firsts_.back(), modules[m].path);
  }
  for (size_t m = 0; m < modules.size(); ++m)
    of_path_[modules[m].path] = static_cast<int>(std::upper_bound(begins.begin(), begins.end(), m) - begins.begin());
  share_out(traced);
}

ForwardStages::ForwardStages(const Graph& traced, const ForwardStages& before)
    : firsts_(before.firsts_), of_path_(before.of_path_) {
  share_out(traced);
}

void ForwardStages::share_out(const Graph& traced) {
  std::unordered_map<const GraphNode*, int> stage_of;
  for (const GraphNode& node : traced.nodes()) {
    int stage = -1;
    for (const GraphValue& input : node.inputs) stage = std::max(stage, stage_of[input.node]);
    if (!node.is_input() && node.phase == Phase::forward) {
      if (const int own = of_path(node.path); own >= 0) stage = own;
      stages_.resize(std::max(stages_.size(), static_cast<size_t>(node.number) + 1), -1);
      stages_[static_cast<size_t>(node.number)] = stage;
    }
    stage_of[&node] = stage;
  }
}

int ForwardStages::of_number(int number) const {
  return number < 0 || static_cast<size_t>(number) >= stages_.size() ? -1 : stages_[static_cast<size_t>(number)];
}

int ForwardStages::of_path(const std::string& path) const {
  auto found = of_path_.find(path);
  return found == of_path_.end() ? -1 : found->second;
}

}  // namespace bonfire::pipeline
