#include "bonfire/runtime/node_times.h"

#include <algorithm>

#include "bonfire/passes/pass.h"
#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::runtime {

namespace {

std::vector<LeafLayout> layouts_of_leaves(const Graph& graph) {
  std::vector<LeafLayout> layouts;
  for (const GraphNode& node : graph.nodes()) {
    if (!node.is_input() || node.leaf_position < 0) continue;
    const auto position = static_cast<size_t>(node.leaf_position);
    layouts.resize(std::max(layouts.size(), position + 1), {{}, true});
    layouts[position].fixed = node.leaf != LeafKind::variable;
  }
  return layouts;
}

}  // namespace

std::optional<std::vector<MeasuredNode>> measured_nodes(Graph& graph, const StepOptions& options) {
  passes::run_pipeline(graph, options);
  const Choices choices = choose_candidates(graph, {layouts_of_leaves(graph)}, options.fast_math);
  std::vector<TimedNode> timed;
  for (const GraphNode& node : graph.nodes()) {
    const auto chosen = choices.of_node.find(&node);
    if (chosen == choices.of_node.end() || chosen->second.alias || chosen->second.candidate.line) continue;
    timed.push_back({&node, {chosen->second.candidate}});
  }
  if (timing_is_shared()) share_out_timing(timed);
  std::vector<MeasuredNode> measured;
  for (const TimedNode& one : timed) {
    const std::vector<double> nanoseconds = candidate_times(*one.node, one.candidates);
    if (nanoseconds.empty()) return {};
    measured.push_back({one.node, 1e-9 * nanoseconds[0]});
  }
  save_tuning();
  return measured;
}

}  // namespace bonfire::runtime
