#include "bonfire/ops/layer_norm.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/creation.h"

namespace bonfire {

namespace {

int normalized_rank(const InferContext& context, const Shape& shape) {
  int64_t rank = context.attributes.integer("rank");
  if (rank < 1 || rank > shape.rank())
    throw_error<ShapeError>("[{}] cannot normalise the last {} axes (inputs: {})", context.op.name, rank,
                            describe_inputs(context));
  return static_cast<int>(rank);
}

Shape leading(const Shape& shape, int normalized) {
  return Shape(shape.extents().first(static_cast<size_t>(shape.rank() - normalized)));
}
Shape trailing(const Shape& shape, int normalized) {
  return Shape(shape.extents().last(static_cast<size_t>(normalized)));
}

// x [rows…, columns…], weight [columns…], bias [columns…] → y, and mean and 1 / deviation of each row.
OutputSpecs infer_layer_norm(const InferContext& context) {
  require_one_device(context);
  const TensorSpec& x = context.input(0);
  int rank = normalized_rank(context, x.shape);
  require_floating(context, 0, "x");
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    const char* role = i == 1 ? "weight" : "bias";
    require_floating(context, i, role);
    require_dtype(context, i, role, context.input(1).dtype);
    require_shape(context, i, role, trailing(x.shape, rank));
  }
  TensorSpec statistics{leading(x.shape, rank), x.dtype == DType::f64 ? DType::f64 : DType::f32, x.device};
  return {x, statistics, statistics};
}

// dy, x, mean, 1 / deviation, weight → dx, and with a weight also dweight and dbias.
OutputSpecs infer_layer_norm_gradient(const InferContext& context) {
  require_one_device(context);
  require_shape(context, 0, "dy", context.input(1).shape);
  require_dtype(context, 0, "dy", context.input(1).dtype);
  if (context.inputs.size() < 5) return {context.input(1)};
  return {context.input(1), context.input(4), context.input(4)};
}

const Op& layer_norm_gradient_op = register_op({.name = "layer_norm_gradient", .infer = infer_layer_norm_gradient});

// With n = (x − mean) / deviation and g = dy · weight:
//   dx = (g − mean(g) − n mean(g n)) / deviation,  dweight = Σ dy n,  dbias = Σ dy.
Tensors layer_norm_rule(const GradientContext& c) {
  if (c.input_count() == 1)
    return {trace_op(layer_norm_gradient_op, {c.gradient(), c.input(0), c.output(1), c.output(2)}, c.attributes())};
  Tensors gradients = trace_op_all(layer_norm_gradient_op,
                                   {c.gradient(), c.input(0), c.output(1), c.output(2), c.input(1)}, c.attributes());
  if (c.input_count() == 2) gradients.pop_back();
  return gradients;
}

const Op& layer_norm_op = register_op({.name = "layer_norm", .infer = infer_layer_norm, .gradient = layer_norm_rule});

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, LayerNormOptions options) {
  Attributes attributes{{"rank", options.rank}, {"eps", options.eps}};
  if (!weight.defined() && !bias.defined()) return trace_op(layer_norm_op, {x}, attributes);
  if (!bias.defined()) return trace_op(layer_norm_op, {x, weight}, attributes);
  return trace_op(layer_norm_op, {x, weight.defined() ? weight : ones_like(bias), bias}, attributes);
}

}  // namespace bonfire
