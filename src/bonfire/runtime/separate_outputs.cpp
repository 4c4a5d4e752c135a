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
  for (size_t i = graph.assignments.size(); i-- > 0;) {
    const GraphAssignment& one = graph.assignments[i];
    if (one.value == GraphValue{one.variable, 0}) graph.unassign(i);
  }
  for (size_t i = 0; i < graph.assignments.size(); ++i) graph.set_assigned(i, own(graph.assignments[i].value, false));
  // An output that is a variable's old version must be copied before anything overwrites it.
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    graph.set_output(i, own(graph.outputs[i], graph.outputs[i].node->is_input()));
  // Another device may read a variable, or what becomes one, while the next step already writes it; and numbers of the
  // host are with the queue of their device only.
  auto is_for_one_device = [&](GraphValue memory) {
    const LeafKind leaf = memory.node->leaf;
    return (leaf != LeafKind::none && leaf != LeafKind::feed) ||
           std::any_of(graph.assignments.begin(), graph.assignments.end(),
                       [&](const GraphAssignment& one) { return root(one.value) == memory; });
  };
  for (GraphNode& node : graph.nodes()) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      GraphValue input = node.inputs[i];
      if (node.is_input() || input.node->device() == node.device()) continue;
      if (is_for_one_device(root(input))) graph.set_input(&node, i, {graph.add(copy_op(), {input}, {}, &node), 0});
    }
  }
}

}  // namespace bonfire::runtime
