#include "bonfire/ops/loss.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/elementwise_functions.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/ops/shard_loss.h"

namespace bonfire {

namespace {

Reduction reduction_of(const Attributes& attributes) { return static_cast<Reduction>(attributes.integer("reduction")); }

// The shape of the targets: that of the logits without axis 1.
Shape row_shape(const Shape& logits) {
  Shape rows;
  for (int i = 0; i < logits.rank(); ++i)
    if (i != 1) rows.push_back(logits[i]);
  return rows;
}

void check_logits(const InferContext& context, size_t logits, size_t target) {
  require_one_device(context);
  require_floating(context, logits, "logits");
  require_dtype(context, target, "target", DType::i64);
  if (context.input(logits).shape.rank() < 2)
    throw_error<ShapeError>("[{}] logits must be [N, C] or [N, C, ...], inputs are ({})", context.op.name,
                            describe_inputs(context));
  require_shape(context, target, "target", row_shape(context.input(logits).shape));
}

// logits, target → loss, log Σ exp of each row (what the gradient needs instead of the probabilities), and how many
// targets are not ignored.
OutputSpecs infer_cross_entropy(const InferContext& context) {
  check_logits(context, 0, 1);
  const TensorSpec& logits = context.input(0);
  Shape rows = row_shape(logits.shape);
  TensorSpec loss{reduction_of(context.attributes) == Reduction::none ? rows : Shape{}, logits.dtype, logits.device};
  TensorSpec log_sum{rows, logits.dtype == DType::f64 ? DType::f64 : DType::f32, logits.device};
  return {loss, log_sum, {{}, DType::i64, logits.device}};
}

OutputSpecs infer_cross_entropy_gradient(const InferContext& context) {  // dloss, logits, target, log_sum, count
  check_logits(context, 1, 2);
  return {context.input(1)};
}

const Op& cross_entropy_gradient_op = register_op({.name = "cross_entropy_gradient",
                                                   .infer = infer_cross_entropy_gradient,
                                                   .shard = shard_cross_entropy_gradient,
                                                   .amp = AmpRule::full});

// dlogits = dloss (softmax − (1 − s) onehot − s / C), divided by the count for the mean; 0 for ignored targets.
Tensors cross_entropy_rule(const GradientContext& c) {
  return {trace_op(cross_entropy_gradient_op, {c.gradient(), c.input(0), c.input(1), c.output(1), c.output(2)},
                   c.attributes()),
          Tensor()};
}

const Op& cross_entropy_op = register_op({.name = "cross_entropy",
                                          .infer = infer_cross_entropy,
                                          .gradient = cross_entropy_rule,
                                          .shard = shard_cross_entropy,
                                          .amp = AmpRule::full});

// x [N, K], weight [V, K], bias [V] if there is one, target [N], dloss [] → loss [], dx, dweight, dbias: a linear layer
// and the cross-entropy of its result, both forward and backward, so that the logits [N, V] never exist as a whole. A
// pass makes it of a step's nodes. The gradients of weight and bias are sums, in f32 even for bf16.
OutputSpecs infer_linear_cross_entropy(const InferContext& context) {
  require_one_device(context);
  const bool has_bias = context.attributes.flag("has_bias");
  const TensorSpec &x = context.input(0), &weight = context.input(1);
  require_floating(context, 0, "x");
  require_dtype(context, 1, "weight", x.dtype);
  if (x.shape.rank() != 2 || weight.shape.rank() != 2 || x.shape[1] != weight.shape[1])
    throw_error<ShapeError>("[{}] x and weight must be [N, K] and [V, K], inputs are ({})", context.op.name,
                            describe_inputs(context));
  if (reduction_of(context.attributes) == Reduction::none)
    throw_error<ShapeError>("[{}] the loss must be a sum or a mean", context.op.name);
  TensorSpec sums = weight, loss = x;
  if (sums.dtype != DType::f64) sums.dtype = loss.dtype = DType::f32;
  loss.shape = {};
  const size_t target = has_bias ? 3 : 2;
  require_dtype(context, target, "target", DType::i64);
  require_shape(context, target, "target", {x.shape[0]});
  require_dtype(context, target + 1, "dloss", loss.dtype);
  require_shape(context, target + 1, "dloss", {});
  OutputSpecs results{loss, x, sums};
  if (!has_bias) return results;
  require_shape(context, 2, "bias", {weight.shape[0]});
  require_bias_type(context, 2, x.dtype);
  sums.shape = {weight.shape[0]};
  results.push_back(sums);
  return results;
}

const Op& linear_cross_entropy_op =
    register_op({.name = "linear_cross_entropy", .infer = infer_linear_cross_entropy, .amp = AmpRule::low});

// The other losses are chains of elementwise ops. This one heads the chain, so that mixed precision computes it in f32.
OutputSpecs infer_full_precision(const InferContext& context) {
  require_floating(context, 0, "x");
  return {context.input(0)};
}
Tensors full_precision_rule(const GradientContext& c) { return {c.gradient()}; }
const Op& full_precision_op = register_op({.name = "full_precision",
                                           .infer = infer_full_precision,
                                           .gradient = full_precision_rule,
                                           .shard = shard_elementwise,
                                           .traits = Trait::elementwise | Trait::cheap,
                                           .amp = AmpRule::full,
                                           .elementwise_function = static_cast<int>(ElementwiseFunction::identity)});

// Losses never broadcast: [N] against [N, 1] would silently compare every pair.
Tensor difference(const char* loss, const Tensor& input, const Tensor& target) {
  require_defined(loss, {{"input", input}, {"target", target}});
  if (!(input.shape() == target.shape()))
    throw_error<ShapeError>("[{}] input has shape {}, target {}; they must be equal", loss, to_string(input.shape()),
                            to_string(target.shape()));
  return trace_op(full_precision_op, {input}) - trace_op(full_precision_op, {target});
}

Tensor reduced(const Tensor& loss, Reduction reduction) {
  if (reduction == Reduction::none) return loss;
  return reduction == Reduction::mean ? mean(loss) : sum(loss);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, CrossEntropyOptions options) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    throw_error<ConfigError>("[cross_entropy] label_smoothing is {}, expected a number in [0, 1]",
                             options.label_smoothing);
  return trace_op(cross_entropy_op, {logits, target},
                  {{"label_smoothing", options.label_smoothing},
                   {"ignore_index", options.ignore_index},
                   {"reduction", static_cast<int>(options.reduction)}});
}

Tensor mse_loss(const Tensor& input, const Tensor& target, LossOptions options) {
  return reduced(square(difference("mse_loss", input, target)), options.reduction);
}

Tensor l1_loss(const Tensor& input, const Tensor& target, LossOptions options) {
  return reduced(absolute(difference("l1_loss", input, target)), options.reduction);
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, SmoothL1Options options) {
  if (options.beta < 0) throw_error<ConfigError>("[smooth_l1_loss] beta is {}, expected at least 0", options.beta);
  Tensor distance = absolute(difference("smooth_l1_loss", input, target));
  if (options.beta == 0) return reduced(distance, options.reduction);
  Tensor near = square(distance) * (0.5 / options.beta), far = distance - 0.5 * options.beta;
  return reduced(where(less(distance, options.beta), near, far), options.reduction);
}

Tensor top_k_correct(const Tensor& logits, const Tensor& target, int64_t k) {
  require_defined("top_k_correct", {{"logits", logits}, {"target", target}});
  if (logits.rank() != 2 || target.rank() != 1 || logits.size(0) != target.size(0) || target.dtype() != DType::i64)
    throw_error<ShapeError>("[top_k_correct] logits must be [N, C] and target i64 [N], found {} and {}",
                            to_string(logits.spec()), to_string(target.spec()));
  NoGrad no_grad;
  Tensor best = top_k(logits, std::min(k, logits.size(1)), 1).indices;  // [N, k]
  return sum(equal(best, unsqueeze(target, 1)));
}

}  // namespace bonfire
