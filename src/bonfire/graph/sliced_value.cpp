#include "bonfire/graph/sliced_value.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/node.h"
#include "bonfire/graph/op.h"

namespace bonfire {

namespace {

Slice slice_in(const Attributes& attributes) { return Slice::from_words(attributes.list("slice")); }

OutputSpecs infer_whole(const InferContext& context) {
  TensorSpec spec = context.input(0);
  spec.shape = slice_in(context.attributes).whole();
  return {spec};
}

OutputSpecs infer_slice_of(const InferContext& context) {
  TensorSpec spec = context.input(0);
  spec.shape = slice_in(context.attributes).local();
  return {spec};
}

Tensors whole_gradient(const GradientContext& context) {
  return {slice_of_whole(context.gradient(), slice_in(context.attributes()))};
}

const Op& whole_of_slice_op = register_op(
    {.name = "whole_of_slice", .infer = infer_whole, .gradient = whole_gradient, .traits = Trait::placeholder});
const Op& slice_of_whole_op =
    register_op({.name = "slice_of_whole", .infer = infer_slice_of, .traits = Trait::placeholder});

// The variable that the placeholder's value is read from, or assigned to; perhaps both in one step.
std::string variable_of(const Graph& graph, const GraphNode& placeholder) {
  const bool reads = placeholder.op == &whole_of_slice_op;
  const GraphNode* value = reads ? placeholder.inputs[0].node : &placeholder;
  if (value->is_input()) return value->path;
  for (const GraphAssignment& assignment : graph.assignments)
    if (assignment.value.node == value) return assignment.variable->path;
  return {};
}

}  // namespace

Tensor whole_of_slice(const Tensor& stored, const Slice& slice) {
  const std::vector<int64_t> words = slice.words();
  return trace_op(whole_of_slice_op, {stored}, {{"slice", std::span<const int64_t>(words)}});
}

Tensor slice_of_whole(const Tensor& whole, const Slice& slice) {
  const std::vector<int64_t> words = slice.words();
  return trace_op(slice_of_whole_op, {whole}, {{"slice", std::span<const int64_t>(words)}});
}

void require_no_placeholders(const Graph& graph) {
  for (const GraphNode& node : graph.nodes()) {
    if (node.is_input() || !node.op->has(Trait::placeholder)) continue;
    const std::string name = variable_of(graph, node);
    throw_error<GraphError>(
        "[{}] {} is whole in this step{}, and this rank has {}: nothing here shares the step out. Take stored() for "
        "the "
        "part that is here, or fleet::gather() for all of it (a collective call)",
        node.op->name, name.empty() ? "a variable" : "variable " + name,
        node.path.empty() ? "" : " (module " + node.path + ")", to_string(slice_in(node.attributes)));
  }
}

}  // namespace bonfire
