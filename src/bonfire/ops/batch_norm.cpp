#include "bonfire/ops/batch_norm.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/elementwise_functions.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire {

namespace {

DType statistics_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

TensorSpec statistics_spec(const TensorSpec& x) { return {{x.shape[1]}, statistics_type(x.dtype), x.device}; }

void require_input(const InferContext& context, size_t input) {
  require_one_device(context);
  require_floating(context, input, "input");
  const Shape& x = context.input(input).shape;
  if (x.rank() < 2 || x.rank() > 4)
    throw_error<ShapeError>("[{}] input is {}, expected [N, C], [N, C, L] or [N, C, H, W]", context.op.name,
                            to_string(x));
}

// Inputs [first, …) are the statistics (or sums) of x, one after the other.
void require_statistics(const InferContext& context, const TensorSpec& x, size_t first,
                        std::initializer_list<const char*> roles) {
  for (const char* role : roles) {
    require_shape(context, first, role, {x.shape[1]});
    require_dtype(context, first++, role, statistics_type(x.dtype));
  }
}

void require_parameters(const InferContext& context, const TensorSpec& x, size_t first,
                        std::initializer_list<const char*> roles) {
  for (const char* role : roles) {
    require_shape(context, first, role, {x.shape[1]});
    if (context.input(first).dtype != x.dtype) require_dtype(context, first, role, statistics_type(x.dtype));
    ++first;
  }
}

void require_like(const InferContext& context, size_t input, const char* role, const TensorSpec& x) {
  require_shape(context, input, role, x.shape);
  require_dtype(context, input, role, x.dtype);
}

OutputSpecs infer_statistics(const InferContext& context) {
  require_input(context, 0);
  return {statistics_spec(context.input(0)), statistics_spec(context.input(0))};
}

OutputSpecs infer_normalize(const InferContext& context) {
  require_input(context, 0);
  const TensorSpec& x = context.input(0);
  require_statistics(context, x, 1, {"mean", "variance"});
  require_parameters(context, x, 3, {"weight", "bias"});
  return {x};
}

OutputSpecs infer_gradient_sums(const InferContext& context) {
  require_input(context, 1);
  const TensorSpec& x = context.input(1);
  require_like(context, 0, "dy", x);
  require_statistics(context, x, 2, {"mean", "variance"});
  return {statistics_spec(x), statistics_spec(x)};
}

OutputSpecs infer_gradient_apply(const InferContext& context) {
  infer_gradient_sums(context);
  const TensorSpec& x = context.input(1);
  require_parameters(context, x, 4, {"weight"});
  require_statistics(context, x, 5, {"sum_dy", "sum_dy_xhat"});
  return {x};
}

OutputSpecs infer_update_running(const InferContext& context) {
  require_one_device(context);
  const TensorSpec& mean = context.input(2);
  require_like(context, 3, "variance", mean);
  OutputSpecs results;
  for (size_t i : {0, 1}) {
    require_floating(context, i, "running statistic");
    require_shape(context, i, "running statistic", mean.shape);
    results.push_back(context.input(i));
  }
  return results;
}

OutputSpecs infer_act(const InferContext& context) {
  OutputSpecs result = infer_normalize(context);
  require_activation(context);
  if (context.attributes.flag("has_residual")) require_like(context, 5, "residual", context.input(0));
  return result;
}

// Inputs of both fused gradient ops; y, when there is one, comes last.
void require_act_gradient(const InferContext& context) {
  infer_gradient_sums(context);
  const TensorSpec& x = context.input(1);
  require_parameters(context, x, 4, {"weight", "bias"});
  require_activation(context);
  if (!context.attributes.flag("has_residual")) return;
  require_like(context, context.inputs.size() - 1, "y", x);
  using F = ElementwiseFunction;
  int64_t activation = context.attributes.integer("activation");
  for (F from_input : {F::gelu, F::gelu_tanh, F::silu})
    if (activation == static_cast<int64_t>(from_input))
      throw_error<ShapeError>(
          "[{}] the gradient of activation {} cannot be had from its result; do not fuse it with a "
          "residual",
          context.op.name, activation);
}

OutputSpecs infer_act_gradient_sums(const InferContext& context) {
  require_act_gradient(context);
  return {statistics_spec(context.input(1)), statistics_spec(context.input(1))};
}

OutputSpecs infer_act_gradient_apply(const InferContext& context) {
  require_act_gradient(context);
  const TensorSpec& x = context.input(1);
  require_statistics(context, x, 6, {"sum_dz", "sum_dz_xhat"});
  OutputSpecs results{x};
  if (context.attributes.flag("has_residual")) results.push_back(x);
  return results;
}

Tensors normalize_gradient(const GradientContext& c);

// By channels, each of which has statistics of its own: axis 1 of images, the only one of values per channel.
ShardRuleResult shard_per_channel(const ShardContext& c) {
  auto axis_of = [](const Shape& shape) { return shape.rank() == 1 ? 0 : 1; };
  const std::optional<size_t> leader = c.first_split();
  if (!leader || !c.shardings[*leader].is_split(axis_of(c.inputs[*leader].shape))) return {};
  const int64_t blocks = c.shardings[*leader].blocks;
  ShardAnswer answer = c.on_whole();
  for (size_t i = 0; i < c.inputs.size(); ++i) answer.inputs[i] = Sharding::split(axis_of(c.inputs[i].shape), blocks);
  for (size_t i = 0; i < c.outputs.size(); ++i)
    answer.outputs[i] = Sharding::split(axis_of(c.outputs[i].shape), blocks);
  return answer;
}

const Op& statistics_op = register_op({.name = "batch_norm_statistics",
                                       .infer = infer_statistics,
                                       .shard = shard_per_channel,
                                       .traits = Trait::reduction});
const Op& normalize_op = register_op({.name = "batch_norm_normalize",
                                      .infer = infer_normalize,
                                      .gradient = normalize_gradient,
                                      .shard = shard_per_channel,
                                      .traits = Trait::cheap});
const Op& gradient_sums_op = register_op({.name = "batch_norm_gradient_sums",
                                          .infer = infer_gradient_sums,
                                          .shard = shard_per_channel,
                                          .traits = Trait::reduction});
const Op& gradient_apply_op =
    register_op({.name = "batch_norm_gradient_apply", .infer = infer_gradient_apply, .shard = shard_per_channel});
const Op& update_running_op =
    register_op({.name = "batch_norm_update_running", .infer = infer_update_running, .shard = shard_per_channel});
const Op& act_op = register_op({.name = "batch_norm_act", .infer = infer_act, .traits = Trait::cheap});
const Op& act_gradient_sums_op =
    register_op({.name = "batch_norm_act_gradient_sums", .infer = infer_act_gradient_sums, .traits = Trait::reduction});
const Op& act_gradient_apply_op =
    register_op({.name = "batch_norm_act_gradient_apply", .infer = infer_act_gradient_apply});

// [C] → [C, 1, …], to stand beside x.
Tensor per_channel(const Tensor& values, const TensorSpec& x) {
  Shape shape{x.shape[1]};
  for (int i = 2; i < x.shape.rank(); ++i) shape.push_back(1);
  return reshape(values, shape);
}

// weight and bias of either mode come from the sums; dx goes through the statistics when they are x's own, so the rule
// leaves no gradient to them.
Tensors normalize_gradient(const GradientContext& c) {
  const Tensor& dy = c.gradient();
  Tensor x = c.input(0), mean = c.input(1), variance = c.input(2), weight = c.input(3);
  double eps = c.attributes().number("eps");
  bool training = c.attributes().flag("training");
  Tensor dx, dweight, dbias;
  Tensors sums;
  if (training || c.needs(3) || c.needs(4)) {
    sums = trace_op_all(gradient_sums_op, {dy, x, mean, variance}, {{"eps", eps}});
    if (c.needs(3)) dweight = cast(sums[1], weight.dtype());
    if (c.needs(4)) dbias = cast(sums[0], c.input_spec(4).dtype);
  }
  if (c.needs(0)) {
    dx = training ? trace_op(gradient_apply_op, {dy, x, mean, variance, weight, sums[0], sums[1]},
                             {{"eps", eps}, {"count", -1}})
                  : cast(dy * per_channel(rsqrt(variance + eps) * weight, x.spec()), x.dtype());
  }
  return {dx, Tensor(), Tensor(), dweight, dbias};
}

void update_running(const Variable& running_mean, const Variable& running_variance, const Tensors& statistics,
                    double momentum, int64_t count) {
  Tensors updated =
      trace_op_all(update_running_op, {running_mean.value(), running_variance.value(), statistics[0], statistics[1]},
                   {{"momentum", momentum}, {"count", count}});
  running_mean.assign(updated[0]);
  running_variance.assign(updated[1]);
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Variable& running_mean,
                  const Variable& running_variance, const BatchNormOptions& options) {
  require_defined("batch_norm", {{"x", x}});
  if (running_mean.defined() != running_variance.defined())
    throw_error<GraphError>("[batch_norm] only one of the two running statistics is there{}; give both or neither",
                            in_current_module());
  if (x.rank() < 2)
    throw_error<ShapeError>("[batch_norm] input is {}, expected [N, C], [N, C, L] or [N, C, H, W]",
                            to_string(x.shape()));
  DType dtype = statistics_type(x.dtype());
  Tensor scale = weight.defined() ? weight : ones({x.size(1)}, dtype, x.device());
  Tensor shift = bias.defined() ? bias : zeros({x.size(1)}, dtype, x.device());
  Attributes attributes{{"eps", options.eps}, {"training", options.training}};
  if (!options.training) {
    if (!running_mean.defined())
      throw_error<GraphError>("[batch_norm] there are no running statistics to use outside of training{}",
                              in_current_module());
    return trace_op(normalize_op, {x, cast(running_mean, dtype), cast(running_variance, dtype), scale, shift},
                    attributes);
  }
  int64_t count = x.size(1) == 0 ? 0 : x.shape().count() / x.size(1);
  if (count == 1 && !options.over_ranks)
    throw_error<ShapeError>(
        "[batch_norm] training needs more than one value per channel, input is {}; use a larger batch (drop_last=true "
        "leaves a small last one out), or strategy.sync_batch_norm where there are several ranks",
        to_string(x.shape()));
  Tensors statistics = trace_op_all(statistics_op, {x});
  if (running_mean.defined()) {
    NoGrad no_grad;  // running statistics follow the values, not the history
    update_running(running_mean, running_variance, statistics, options.momentum, count);
  }
  return trace_op(normalize_op, {x, statistics[0], statistics[1], scale, shift}, attributes);
}

}  // namespace bonfire
