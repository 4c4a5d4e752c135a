#pragma once
// The planner's first two stages: which candidate computes each node, and how every value lies in memory. Layouts of
// images are chosen for the whole step (image_layouts.h). Then nodes are visited in order; each takes the candidate
// with the least time among those that keep its images so, counting a reorder for everything else that does not lie as
// the candidate wants it. Variables whose layout is still free take the one that their first user wants.

#include <unordered_map>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/runtime/given_layouts.h"

namespace bonfire::runtime {

struct Choice {
  Candidate candidate;
  bool alias = false;  // a view: shares its input's memory, nothing runs
};

struct Choices {
  std::unordered_map<const GraphNode*, Choice> of_node;
  std::vector<Layout> leaf_layouts;
  std::vector<bool> leaf_layout_used;
  std::vector<Layout> output_layouts;
};

// Inserts `reorder` nodes into the graph where needed. fast_math: as in KernelRequest.
Choices choose_candidates(Graph& graph, const GivenLayouts& given, bool fast_math);

}  // namespace bonfire::runtime
