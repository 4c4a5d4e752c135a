#pragma once
// Which elementwise functions fused kernels can end in.

#include "bonfire/graph/graph.h"
#include "bonfire/ops/elementwise_functions.h"

namespace bonfire::passes {

inline bool is_activation(ElementwiseFunction function) {
  switch (function) {
    case ElementwiseFunction::relu:
    case ElementwiseFunction::gelu:
    case ElementwiseFunction::gelu_tanh:
    case ElementwiseFunction::tanh:
    case ElementwiseFunction::sigmoid:
    case ElementwiseFunction::silu: return true;
    default: return false;
  }
}

inline bool is_activation(const GraphNode& node) {
  if (node.is_input() || node.op->elementwise_function < 0 || node.inputs.size() != 1) return false;
  return is_activation(static_cast<ElementwiseFunction>(node.op->elementwise_function));
}

inline bool is_addition(const GraphNode& node) {
  return !node.is_input() && node.op->elementwise_function == static_cast<int>(ElementwiseFunction::add);
}

// The only node that uses the value, when there is exactly one.
inline GraphNode* only_user(const Graph& graph, GraphValue value) {
  const std::vector<GraphNode*>& users = graph.users(value);
  return users.empty() || !graph.only_user(value, users[0]) ? nullptr : users[0];
}

}  // namespace bonfire::passes
