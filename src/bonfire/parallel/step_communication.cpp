#include "bonfire/parallel/step_communication.h"

#include "bonfire/comm/all_reduce.h"
#include "bonfire/comm/flat_parts.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::fleet {

namespace {

// The op that computes a value; casts and changes of layout are none.
const GraphNode& maker_of(const GraphValue& value) {
  const GraphNode* node = value.node;
  while (!node->is_input() && (node->name() == "cast" || node->name() == "reorder")) node = node->inputs[0].node;
  return *node;
}

bool is_along_data(const GraphNode& node) { return node.attributes.integer("axis") == static_cast<int>(Axis::data); }

bool is_gradient_of_embedding(const GraphNode& node) {
  return node.name() == "embedding_gradient" || node.name() == "embedding_gradient_add";
}

StepCommunication::Embedding embedding_of(const GraphNode& gradient) {
  const TensorSpec& table = gradient.outputs[0];  // [rows, size]
  StepCommunication::Embedding found{.path = gradient.path, .dense = static_cast<int64_t>(table.bytes())};
  for (const GraphValue& input : gradient.inputs)
    if (!is_floating(input.spec().dtype))
      found.rows = input.spec().shape.count() *
                   static_cast<int64_t>(found.dense / table.shape[0] + static_cast<int64_t>(sizeof(int64_t)));
  // What is added to it is an older gradient of the same kind, or the gradient of a layer.
  found.shared = gradient.name() == "embedding_gradient_add" && !maker_of(gradient.inputs.back()).is_input();
  return found;
}

}  // namespace

StepCommunication communication_of(const runtime::Plan& plan) {
  StepCommunication found;
  for (const GraphNode& node : plan.graph->nodes()) {
    const bool gathers = node.op == &comm::gather_flat_op(), scatters = node.op == &comm::scatter_flat_op();
    if (!gathers && !scatters && node.op != &comm::all_reduce_op()) continue;
    if (!is_along_data(node)) continue;
    ++found.merged;
    found.gathers += gathers ? 1 : 0;
    found.scatters += scatters ? 1 : 0;
    if (gathers)
      for (const TensorSpec& whole : node.outputs) found.bytes += static_cast<int64_t>(whole.bytes());
    found.unmerged += static_cast<int64_t>(node.inputs.size());
    for (const GraphValue& input : node.inputs) {
      if (gathers) break;
      found.bytes += static_cast<int64_t>(input.spec().bytes());
      if (const GraphNode& maker = maker_of(input); is_gradient_of_embedding(maker))
        found.embeddings.push_back(embedding_of(maker));
    }
  }
  return found;
}

StepCommunication last_communication() {
  for (const auto& plan : runtime::cached_plans())
    if (plan->waits_for_ranks) return communication_of(*plan);
  return {};
}

}  // namespace bonfire::fleet
