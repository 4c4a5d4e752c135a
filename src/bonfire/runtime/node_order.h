#pragma once
// In which order the nodes of a step run, and which of them form a program: the nodes of one device between two places
// where it waits for another, or where another waits for it. Private to runtime.

#include <unordered_map>
#include <vector>

#include "bonfire/graph/graph.h"

namespace bonfire::runtime {

struct NodeOrder {
  std::vector<GraphNode*> nodes;
  std::vector<int> program_of;          // [nodes]
  std::vector<Device> program_devices;  // [programs]: in the order in which they are submitted
  std::unordered_map<const GraphNode*, int> position;

  void append(GraphNode* node, int program);
  void append_last(GraphNode* node);  // to the last program of its device
};

// A step on one device is one program, in the order of the graph. On several devices each does first what another one
// waits for, and a program ends after such a value and begins with one that it has to wait for itself: so branches that
// do not depend on each other run at the same time, in the backward pass too. Where a wait would not come any sooner
// there is no cut.
NodeOrder order_nodes(Graph& graph);

}  // namespace bonfire::runtime
