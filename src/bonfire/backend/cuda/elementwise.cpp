// Every elementwise op and every chain of them: one generated kernel each.
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

std::vector<Candidate> candidates(const KernelRequest& request) {
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
                  [expression = Expression::of(node), layout, shapes, layouts = candidate.input_layouts] {
                    return make_expression_kernel(expression, plan_walk(expression, layout, shapes, layouts));
                  });
  return {std::move(candidate)};
}

const bool registered = register_kernel(std::string(kAnyElementwise), DeviceType::cuda, candidates);

}  // namespace

}  // namespace bonfire::cuda
