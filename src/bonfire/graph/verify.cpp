#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/graph/graph.h"

namespace bonfire {

void verify(const Graph& graph, std::string_view after) {
  std::unordered_set<const GraphNode*> seen;
  auto check_value = [&](const GraphValue& value, std::string_view user) {
    BONFIRE_CHECK(value.node != nullptr && seen.contains(value.node),
                  "after {}: {} uses a value that comes later or is gone", after, user);
    BONFIRE_CHECK(value.index >= 0 && value.index < static_cast<int>(value.node->outputs.size()),
                  "after {}: {} uses output {} of {}", after, user, value.index, value.node->name());
  };
  for (const GraphNode& node : graph.nodes()) {
    for (const GraphValue& input : node.inputs) check_value(input, node.name());
    if (!node.is_input()) {
      std::vector<const TensorSpec*> specs;
      for (const GraphValue& input : node.inputs) specs.push_back(&input.spec());
      OutputSpecs outputs = node.op->infer({*node.op, specs, node.attributes});
      BONFIRE_CHECK(outputs.size() == node.outputs.size(), "after {}: {} has {} outputs, its rule gives {}", after,
                    node.name(), node.outputs.size(), outputs.size());
      for (size_t i = 0; i < outputs.size(); ++i)
        BONFIRE_CHECK(outputs[i] == node.outputs[i], "after {}: output {} of {} is {}, its rule gives {}", after, i,
                      node.name(), to_string(node.outputs[i]), to_string(outputs[i]));
    }
    seen.insert(&node);
  }
  for (const GraphValue& output : graph.outputs) check_value(output, "an output of the graph");
  for (const GraphAssignment& assignment : graph.assignments) {
    check_value(assignment.value, "an assignment");
    BONFIRE_CHECK(assignment.variable->leaf == LeafKind::variable, "after {}: an assignment to something else", after);
    BONFIRE_CHECK(assignment.variable->outputs[0] == assignment.value.spec(), "after {}: {} assigned to {}", after,
                  to_string(assignment.value.spec()), to_string(assignment.variable->outputs[0]));
  }
}

}  // namespace bonfire
