#pragma once
// How long the nodes of a step take on their device, by what has been measured of their kernels (runtime/tuning.h):
// what is not known yet is measured now, shared out among the ranks that time for each other.

#include <optional>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/graph/step_options.h"

namespace bonfire::runtime {

struct MeasuredNode {
  const GraphNode* node;
  double seconds;  // of the kernel that planning chooses for it
};

// Runs the passes on the graph and chooses kernels as planning does, variables in whatever layout suits; the nodes are
// those of the graph as it is then. Left out are views, and what waits for other ranks. Nothing where something has not
// been measured and must not be (BONFIRE_TUNE).
std::optional<std::vector<MeasuredNode>> measured_nodes(Graph& graph, const StepOptions& options);

}  // namespace bonfire::runtime
