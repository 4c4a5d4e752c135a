#include "bonfire/ops/softmax.h"

#include "bonfire/graph/op.h"
#include "bonfire/ops/checks.h"

namespace bonfire {

namespace {

OutputSpecs infer_softmax(const InferContext& context) {  // x
  require_floating(context, 0, "x");
  return {context.input(0)};
}

OutputSpecs infer_gradient(const InferContext& context) {  // dy, y
  require_one_device(context);
  require_dtype(context, 1, "y", context.input(0).dtype);
  require_shape(context, 1, "y", context.input(0).shape);
  return {context.input(0)};
}

const Op& softmax_gradient_op =
    register_op({.name = "softmax_gradient", .infer = infer_gradient, .amp = AmpRule::full});
const Op& log_softmax_gradient_op =
    register_op({.name = "log_softmax_gradient", .infer = infer_gradient, .amp = AmpRule::full});

Tensors softmax_rule(const GradientContext& c) {  // dx = y (dy − Σ dy y)
  return {trace_op(softmax_gradient_op, {c.gradient(), c.output()}, c.attributes())};
}
Tensors log_softmax_rule(const GradientContext& c) {  // dx = dy − exp(y) Σ dy
  return {trace_op(log_softmax_gradient_op, {c.gradient(), c.output()}, c.attributes())};
}

const Op& softmax_op =
    register_op({.name = "softmax", .infer = infer_softmax, .gradient = softmax_rule, .amp = AmpRule::full});
const Op& log_softmax_op =
    register_op({.name = "log_softmax", .infer = infer_softmax, .gradient = log_softmax_rule, .amp = AmpRule::full});

Tensor along_axis(const Op& op, const Tensor& x, int64_t axis) {
  require_defined(op.name, {{"x", x}});
  return trace_op(op, {x}, {{"axis", normalize_axis(op.name, axis, x.rank())}});
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t axis) { return along_axis(softmax_op, x, axis); }
Tensor log_softmax(const Tensor& x, int64_t axis) { return along_axis(log_softmax_op, x, axis); }

}  // namespace bonfire
