// Every elementwise op: one generated kernel each.
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/expression.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

// The layout that the result takes: that of the first input as large as it, so that nothing is reordered for it.
Layout result_layout(const KernelRequest& request) {
  const Shape& shape = request.node.outputs[0].shape;
  for (size_t i = 0; i < request.node.inputs.size(); ++i)
    if (request.node.inputs[i].spec().shape == shape && request.arriving[i].block == 0) return request.arriving[i];
  return {};
}

std::vector<Candidate> expression_candidates(const KernelRequest& request, Expression expression) {
  const GraphNode& node = request.node;
  const Shape& shape = node.outputs[0].shape;
  Layout layout = result_layout(request);
  Candidate candidate = row_major_candidate(request, "generated");
  std::vector<Shape> shapes;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const TensorSpec& input = node.inputs[i].spec();
    shapes.push_back(input.shape);
    bool whole = input.shape == shape;
    if (whole) candidate.input_layouts[i] = unless_same(shape, layout, request.arriving[i]);
    if (!whole && request.arriving[i].block == 0) candidate.input_layouts[i] = request.arriving[i];
    for (size_t o = 0; o < node.outputs.size() && whole; ++o)
      if (size_of(input.dtype) == size_of(node.outputs[o].dtype))
        candidate.in_place.emplace_back(static_cast<int>(o), static_cast<int>(i));
  }
  for (Layout& output : candidate.output_layouts) output = layout;
  build_on_device(candidate, request,
                  [expression, shape, layout, shapes, layouts = candidate.input_layouts] {
                    Walk walk = plan_walk(shape, layout, shapes, layouts, expression);
                    return make_expression_kernel(expression, walk);
                  });
  return {std::move(candidate)};
}

Expression inputs_of(const GraphNode& node) {
  Expression expression;
  for (const GraphValue& input : node.inputs) expression.inputs.push_back(input.spec().dtype);
  for (const TensorSpec& output : node.outputs) expression.output_types.push_back(output.dtype);
  return expression;
}

std::vector<Candidate> single(const KernelRequest& request) {
  const GraphNode& node = request.node;
  Expression expression = inputs_of(node);
  Instruction instruction{static_cast<ElementwiseFunction>(node.op->elementwise_function), {}, node.outputs[0].dtype};
  for (size_t i = 0; i < node.inputs.size(); ++i) instruction.operands.push_back(static_cast<int>(i));
  expression.outputs.push_back(static_cast<int>(node.inputs.size()));
  expression.instructions.push_back(std::move(instruction));
  return expression_candidates(request, std::move(expression));
}

const bool registered = [] {
#define BONFIRE_REGISTER(name, arity) register_kernel(#name, DeviceType::cuda, single);
  BONFIRE_ELEMENTWISE_FUNCTIONS(BONFIRE_REGISTER)
#undef BONFIRE_REGISTER
  register_kernel("cast", DeviceType::cuda, single);
  return register_kernel("full_precision", DeviceType::cuda, single);
}();

}  // namespace

}  // namespace bonfire::cuda
