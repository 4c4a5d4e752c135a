#include "bonfire/runtime/node_order.h"

#include <algorithm>
#include <map>

#include "bonfire/base/error.h"

namespace bonfire::runtime {

void NodeOrder::append(GraphNode* node, int program) {
  position[node] = static_cast<int>(nodes.size());
  program_of.push_back(program);
  nodes.push_back(node);
}

void NodeOrder::append_last(GraphNode* node) {
  auto last = std::find(program_devices.rbegin(), program_devices.rend(), node->device());
  BONFIRE_CHECK(last != program_devices.rend());
  append(node, static_cast<int>(program_devices.rend() - last) - 1);
}

NodeOrder order_nodes(Graph& graph) {
  std::map<const GraphNode*, int> level;
  std::map<std::pair<int, Device>, std::vector<GraphNode*>> groups;
  for (GraphNode& node : graph.nodes()) {
    int own = 0;
    for (const GraphValue& input : node.inputs) {
      bool crosses = !input.node->is_input() && input.node->device() != node.device();
      own = std::max(own, level[input.node] + (crosses ? 1 : 0));
    }
    level[&node] = own;
    if (!node.is_input()) groups[{own, node.device()}].push_back(&node);
  }
  NodeOrder order;
  for (auto& [key, nodes] : groups) {
    for (GraphNode* node : nodes) order.append(node, static_cast<int>(order.program_devices.size()));
    order.program_devices.push_back(key.second);
  }
  return order;
}

}  // namespace bonfire::runtime
