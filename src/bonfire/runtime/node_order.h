#pragma once
// In which order the nodes of a step run, and which of them form a program: those of one device between two crossings.
// Private to runtime.

#include <unordered_map>
#include <vector>

#include "bonfire/graph/graph.h"

namespace bonfire::runtime {

struct NodeOrder {
  std::vector<GraphNode*> nodes;
  std::vector<int> program_of;          // [nodes]
  std::vector<Device> program_devices;  // [programs]
  std::unordered_map<const GraphNode*, int> position;

  void append(GraphNode* node, int program);
  void append_last(GraphNode* node);  // to the last program of its device
};

// Programs alternate between devices only where values cross: a node's level counts the crossings before it, and all
// nodes of one device and level form one program.
NodeOrder order_nodes(Graph& graph);

}  // namespace bonfire::runtime
