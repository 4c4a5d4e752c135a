#include "bonfire/ops/softmax.h"

#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
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

ShardRuleResult shard_softmax(const ShardContext& c) {  // by rows, which are independent of each other
  const std::optional<size_t> split = c.first_split();
  if (!split || c.shardings[*split].axis == c.attributes.integer("axis")) return {};
  return shard_alike(c, c.shardings[*split]);
}

const Op& make_softmax_op(const char* name, InferRule infer, GradientRule gradient) {
  return register_op(
      {.name = name, .infer = infer, .gradient = gradient, .shard = shard_softmax, .amp = AmpRule::full});
}

const Op& softmax_gradient_op = make_softmax_op("softmax_gradient", infer_gradient, nullptr);
const Op& log_softmax_gradient_op = make_softmax_op("log_softmax_gradient", infer_gradient, nullptr);

Tensors softmax_rule(const GradientContext& c) {  // dx = y (dy − Σ dy y)
  return {trace_op(softmax_gradient_op, {c.gradient(), c.output()}, c.attributes())};
}
Tensors log_softmax_rule(const GradientContext& c) {  // dx = dy − exp(y) Σ dy
  return {trace_op(log_softmax_gradient_op, {c.gradient(), c.output()}, c.attributes())};
}

const Op& softmax_op = make_softmax_op("softmax", infer_softmax, softmax_rule);
const Op& log_softmax_op = make_softmax_op("log_softmax", infer_softmax, log_softmax_rule);

Tensor along_axis(const Op& op, const Tensor& x, int64_t axis) {
  require_defined(op.name, {{"x", x}});
  return trace_op(op, {x}, {{"axis", normalize_axis(op.name, axis, x.rank())}});
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t axis) { return along_axis(softmax_op, x, axis); }
Tensor log_softmax(const Tensor& x, int64_t axis) { return along_axis(log_softmax_op, x, axis); }

}  // namespace bonfire
