#include "bonfire/ops/reduce.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/indexing.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire {

namespace {

using Context = const GradientContext&;

// Sorted axes in [0, rank); all of them when none is given.
Shape reduced_axes(const char* op, const Tensor& x, const Shape& axes) {
  bool reduced[Shape::kMaxRank] = {};
  for (int64_t axis : axes) {
    int normal = normalize_axis(op, axis, x.rank());
    if (reduced[normal])
      throw_error<ShapeError>("[{}] axis {} is named twice in {} (input {})", op, normal, to_string(axes),
                              to_string(x.shape()));
    reduced[normal] = true;
  }
  Shape result;
  for (int i = 0; i < x.rank(); ++i)
    if (axes.rank() == 0 || reduced[i]) result.push_back(i);
  return result;
}

Shape without_axes(const Shape& shape, const Shape& axes, bool keepdim) {
  Shape result;
  int next = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    bool reduced = next < axes.rank() && axes[next] == i;
    next += reduced;
    if (!reduced) result.push_back(shape[i]);
    if (reduced && keepdim) result.push_back(1);
  }
  return result;
}

TensorSpec infer_reduced(const InferContext& context) {
  TensorSpec spec = context.input(0);
  spec.shape = without_axes(spec.shape, context.attributes.ints("axes"), context.attributes.flag("keepdim"));
  return spec;
}

OutputSpecs infer_sum(const InferContext& context) {
  TensorSpec spec = infer_reduced(context);
  if (!is_floating(spec.dtype)) spec.dtype = DType::i64;
  return {spec};
}

// The sum of bf16 as f32, without a cast of the whole tensor before; made by a pass.
OutputSpecs infer_sum_as_f32(const InferContext& context) {
  require_dtype(context, 0, "x", DType::bf16);
  TensorSpec spec = infer_reduced(context);
  spec.dtype = DType::f32;
  return {spec};
}

OutputSpecs infer_mean(const InferContext& context) {
  if (!is_floating(context.input(0).dtype))
    throw_error<ShapeError>("[mean] the input is {}, expected a floating type; cast it first",
                            to_string(context.input(0)));
  return {infer_reduced(context)};
}

void require_elements(const InferContext& context, const Shape& axes) {
  for (int64_t axis : axes)
    if (context.input(0).shape[static_cast<int>(axis)] == 0)
      throw_error<ShapeError>("[{}] axis {} of {} is empty: there is no element to choose", context.op.name, axis,
                              to_string(context.input(0).shape));
}

OutputSpecs infer_extremum(const InferContext& context) {
  require_elements(context, context.attributes.ints("axes"));
  return {infer_reduced(context)};
}

OutputSpecs infer_arg_extremum(const InferContext& context) {
  require_elements(context, context.attributes.ints("axes"));
  TensorSpec spec = infer_reduced(context);
  spec.dtype = DType::i64;
  return {spec};
}

OutputSpecs infer_top_k(const InferContext& context) {
  TensorSpec values = context.input(0);
  int axis = static_cast<int>(context.attributes.integer("axis"));
  int64_t k = context.attributes.integer("k");
  if (k < 0 || k > values.shape[axis])
    throw_error<ShapeError>("[top_k] k is {}, axis {} of {} has {} elements", k, axis, to_string(values.shape),
                            values.shape[axis]);
  values.shape[axis] = k;
  TensorSpec indices = values;
  indices.dtype = DType::i64;
  return {values, indices};
}

// `reduced`, the result of a reduction or its gradient, with the reduced axes back in place as extent 1.
Tensor with_axes(Context c, const Tensor& reduced) {
  return reshape(reduced, without_axes(c.input_spec(0).shape, c.attributes().ints("axes"), true));
}

Tensors sum_gradient(Context c) {  // dx = dy, everywhere
  return {broadcast_to(with_axes(c, c.gradient()), c.input_spec(0).shape)};
}

Tensors mean_gradient(Context c) {  // dx = dy / n, everywhere
  const Shape& shape = c.input_spec(0).shape;
  int64_t count = 1;
  for (int64_t axis : c.attributes().ints("axes")) count *= shape[static_cast<int>(axis)];
  return {broadcast_to(with_axes(c, c.gradient() / static_cast<double>(count)), shape)};
}

Tensors extremum_gradient(Context c) {  // dx = dy / (number of winners), at the winners
  Tensor dy = with_axes(c, c.gradient());
  Tensor winners = cast(equal(c.input(0), with_axes(c, c.output())), dy.dtype());
  return {winners * (dy / sum(winners, c.attributes().ints("axes"), {.keepdim = true}))};
}

Tensors top_k_gradient(Context c) {
  return {scatter_add(c.gradient(0), c.attributes().integer("axis"), c.output(1), c.input_spec(0).shape)};
}

// Along another axis than those that are reduced.
ShardRuleResult shard_kept_axis(const ShardContext& c) {
  const Sharding& split = c.shardings[0];
  if (!split.is_split()) return {};
  int before = 0;  // axes in front that go
  for (int64_t axis : c.attributes.ints("axes")) {
    if (axis == split.axis) return {};
    before += axis < split.axis ? 1 : 0;
  }
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = split;
  answer.outputs[0] = Sharding::split(c.attributes.flag("keepdim") ? split.axis : split.axis - before, split.blocks);
  return answer;
}

ShardRuleResult shard_sum(const ShardContext& c) {
  if (ShardRuleResult kept = shard_kept_axis(c)) return kept;
  if (c.shardings[0].is_whole()) return {};
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = c.shardings[0];
  answer.outputs[0] = Sharding::partial();
  return answer;
}

ShardRuleResult shard_max(const ShardContext& c) {
  if (ShardRuleResult kept = shard_kept_axis(c)) return kept;
  if (!c.shardings[0].is_split()) return {};
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = c.shardings[0];
  answer.build = [](ShardBuilder& b) -> std::vector<GraphValue> {
    return {b.all_reduce(b.add("max", {b.input(0)}, b.context().attributes), ShardBuilder::Over::max)};
  };
  return answer;
}

const Op& make_reduction(const char* name, InferRule infer, GradientRule gradient, ShardRule shard) {
  return register_op({.name = name,
                      .infer = infer,
                      .gradient = gradient,
                      .shard = shard,
                      .traits = Trait::reduction,
                      .amp = AmpRule::full});
}

const Op& sum_op = make_reduction("sum", infer_sum, sum_gradient, shard_sum);
const Op& sum_as_f32_op =
    register_op({.name = "sum_as_f32", .infer = infer_sum_as_f32, .traits = Trait::reduction, .amp = AmpRule::low});
const Op& mean_op = make_reduction("mean", infer_mean, mean_gradient, shard_kept_axis);
const Op& max_op = make_reduction("max", infer_extremum, extremum_gradient, shard_max);
const Op& min_op = make_reduction("min", infer_extremum, extremum_gradient, shard_kept_axis);

// Which element wins does not depend on precision: these take what arrives.
const Op& argmax_op =
    register_op({.name = "argmax", .infer = infer_arg_extremum, .shard = shard_kept_axis, .traits = Trait::reduction});
const Op& argmin_op =
    register_op({.name = "argmin", .infer = infer_arg_extremum, .shard = shard_kept_axis, .traits = Trait::reduction});
const Op& top_k_op = register_op({.name = "top_k", .infer = infer_top_k, .gradient = top_k_gradient});

Tensor reduce(const Op& op, const Tensor& x, const Shape& axes, ReduceOptions options) {
  require_defined(op.name, {{"x", x}});
  return trace_op(op, {x}, {{"axes", reduced_axes(op.name.c_str(), x, axes)}, {"keepdim", options.keepdim}});
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& axes, ReduceOptions options) { return reduce(sum_op, x, axes, options); }
Tensor mean(const Tensor& x, const Shape& axes, ReduceOptions options) { return reduce(mean_op, x, axes, options); }
Tensor max(const Tensor& x, const Shape& axes, ReduceOptions options) { return reduce(max_op, x, axes, options); }
Tensor min(const Tensor& x, const Shape& axes, ReduceOptions options) { return reduce(min_op, x, axes, options); }
Tensor argmax(const Tensor& x, int64_t axis, ReduceOptions options) { return reduce(argmax_op, x, {axis}, options); }
Tensor argmin(const Tensor& x, int64_t axis, ReduceOptions options) { return reduce(argmin_op, x, {axis}, options); }

TopK top_k(const Tensor& x, int64_t k, int64_t axis) {
  require_defined("top_k", {{"x", x}});
  Tensors outputs = trace_op_all(top_k_op, {x}, {{"k", k}, {"axis", normalize_axis("top_k", axis, x.rank())}});
  return {outputs[0], outputs[1]};
}

Tensor sum_to(const Tensor& x, const TensorSpec& target) {
  require_defined("sum_to", {{"x", x}});
  int added = x.rank() - target.shape.rank();  // leading axes that broadcasting put in front
  Shape axes;
  for (int i = 0; i < x.rank(); ++i)
    if (i < added || (target.shape[i - added] == 1 && x.size(i) != 1)) axes.push_back(i);
  Tensor result = axes.rank() == 0 ? x : sum(x, axes);
  if (result.shape() != target.shape) result = reshape(result, target.shape);
  return cast(result, target.dtype);
}

}  // namespace bonfire
