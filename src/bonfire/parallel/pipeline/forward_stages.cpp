#include "bonfire/parallel/pipeline/forward_stages.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/parallel/pipeline/visited_modules.h"

namespace bonfire::pipeline {
namespace {

// The first module of each further stage.
std::vector<size_t> found_in(const std::vector<std::string>& firsts, const VisitedModules& modules) {
  std::vector<size_t> begins;
  for (const std::string& first : firsts) {
    const std::optional<size_t> found = modules.first_in(first);
    if (!found)
      throw_error<ConfigError>("[pipeline] cut names '{}', and the step runs through no such module; there are {}",
                               first, modules.names());
    const size_t place = *found;
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

}  // namespace

ForwardStages::ForwardStages(const Graph& traced, const CutOptions& options) {
  const VisitedModules modules(traced);
  if (options.firsts.size() + 1 != static_cast<size_t>(options.stages))
    throw_error<ConfigError>(
        "[pipeline] cut names the first modules of {} further stages ({}), and the mesh has {} stages: name {}",
        options.firsts.size(), fmt::join(options.firsts, ", "), options.stages, options.stages - 1);
  firsts_ = options.firsts;
  const std::vector<size_t> begins = found_in(firsts_, modules);
  for (size_t i = 0; i < begins.size(); ++i) {
    for (size_t m = 0; m < begins[i]; ++m)
      if (modules[m].last >= modules[begins[i]].first)
        throw_error<ConfigError>(
            "[pipeline] the cut at '{}' goes through '{}', which computes on both sides of it; cut before that module "
            "or after it",
            firsts_[i], modules[m].path);
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
