#include "bonfire/runtime/separate_outputs.h"

#include <algorithm>
#include <vector>

namespace bonfire::runtime {

namespace {

OutputSpecs infer_copy(const InferContext& context) { return {context.input(0)}; }

const Op& registered_copy_op = register_op({.name = "copy", .infer = infer_copy});

// The value whose memory `value` shares: views are looked through.
GraphValue root(GraphValue value) {
  while (!value.node->is_input() && value.node->op->has(Trait::view)) value = value.node->inputs[0];
  return value;
}

GraphNode* first_op(Graph& graph) {
  for (GraphNode& node : graph.nodes())
    if (!node.is_input()) return &node;
  return nullptr;
}

}  // namespace

const Op& copy_op() { return registered_copy_op; }

void separate_outputs(Graph& graph) {
  std::vector<GraphValue> taken;
  auto own = [&](GraphValue value, bool at_start) -> GraphValue {
    GraphValue memory = root(value);
    if (!memory.node->is_input() && std::find(taken.begin(), taken.end(), memory) == taken.end()) {
      taken.push_back(memory);
      return value;
    }
    GraphNode* copy = graph.add(copy_op(), {value}, {}, at_start ? first_op(graph) : nullptr);
    copy->path = value.node->path;
    taken.push_back({copy, 0});
    return {copy, 0};
  };
  std::erase_if(graph.assignments, [](const GraphAssignment& one) { return one.value == GraphValue{one.variable, 0}; });
  for (GraphAssignment& assignment : graph.assignments) assignment.value = own(assignment.value, false);
  // An output that is a variable's old version must be copied before anything overwrites it.
  for (GraphValue& output : graph.outputs) output = own(output, output.node->is_input());
  // Another device may read a variable while the next step already writes it.
  for (GraphNode& node : graph.nodes()) {
    for (GraphValue& input : node.inputs) {
      if (node.is_input() || input.node->device() == node.device()) continue;
      if (root(input).node->leaf == LeafKind::variable) input = {graph.add(copy_op(), {input}, {}, &node), 0};
    }
  }
}

}  // namespace bonfire::runtime
