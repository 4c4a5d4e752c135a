#include "bonfire/ops/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/random_places.h"

namespace bonfire {

namespace {

// Checks q, k, v at inputs first … first + 2 and, after them, the mask and the key if there are any.
void check_operands(const InferContext& context, size_t first) {
  require_one_device(context);
  const Shape &q = context.input(first).shape, &k = context.input(first + 1).shape, &v = context.input(first + 2).shape;
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4)
    throw_error<ShapeError>("[{}] q, k and v must have 4 axes [batch, heads, time, features] (inputs: {})",
                            context.op.name, describe_inputs(context));
  require_floating(context, first, "q");
  require_dtype(context, first + 1, "k", context.input(first).dtype);
  require_dtype(context, first + 2, "v", context.input(first).dtype);
  require_shape(context, first + 1, "k", {q[0], q[1], k[2], q[3]});
  require_shape(context, first + 2, "v", {q[0], q[1], k[2], v[3]});
  const Shape scores{q[0], q[1], q[2], k[2]};
  require_slice(context, scores);
  if (!context.attributes.flag("has_mask")) return;
  const size_t mask = first + 3;
  require_floating(context, mask, "the mask");
  if (!(broadcast_shapes(context.op.name, context.input(mask).shape, scores) == scores))
    throw_error<ShapeError>("[{}] a mask of shape {} does not broadcast to the scores {}", context.op.name,
                            to_string(context.input(mask).shape), to_string(scores));
}

// q, k, v, mask, key → y, and log Σ exp of each query's scores [B, H, T].
OutputSpecs infer_attention(const InferContext& context) {
  check_operands(context, 0);
  TensorSpec y = context.input(0), log_sum = y;
  y.shape[3] = context.input(2).shape[3];
  log_sum.shape = {y.shape[0], y.shape[1], y.shape[2]};
  if (log_sum.dtype != DType::f64) log_sum.dtype = DType::f32;
  return {y, log_sum};
}

// dy, y, log_sum, q, k, v, mask, key → dq, dk, dv
OutputSpecs infer_attention_gradient(const InferContext& context) {
  check_operands(context, 3);
  require_shape(context, 0, "dy", context.input(1).shape);
  require_dtype(context, 0, "dy", context.input(3).dtype);
  require_dtype(context, 1, "y", context.input(3).dtype);
  return {context.input(3), context.input(4), context.input(5)};
}

constexpr uint32_t input_bit(int input) { return 1U << input; }

// By heads, which do not know of each other. `first` is q's place among the inputs.
ShardRuleResult shard_heads(const ShardContext& c, size_t first) {
  constexpr int kHeads = 1;
  const std::optional<size_t> split = c.first_split();
  const Shape &q = c.inputs[first].shape, &k = c.inputs[first + 1].shape;
  const Sharding heads = Sharding::split(kHeads, split ? c.shardings[*split].blocks : 1);
  if (!split || !c.shardings[*split].is_split(kHeads) || heads.blocks != 1 || !c.can_split(q, heads)) return {};
  if (c.attributes.has("whole")) return {};  // it is a slice already
  ShardAnswer answer = c.on_whole();
  for (size_t i = 0; i < first + 3; ++i) answer.inputs[i] = heads;
  if (c.attributes.flag("has_mask")) {
    const Shape& mask = c.inputs[first + 3].shape;
    const int own = mask.rank() - 3;  // its axis for heads
    if (own >= 0 && mask[own] == q[kHeads]) answer.inputs[first + 3] = Sharding::split(own);
  }
  for (Sharding& output : answer.outputs) output = heads;
  if (c.attributes.number("dropout") > 0)
    set_slice(
        answer.attributes,
        {.whole = {q[0], q[1], q[2], k[2]}, .offset = {0, c.place * (q[1] / c.parts), 0, 0}, .stride = {1, 1, 1, 1}});
  return answer;
}
ShardRuleResult shard_attention(const ShardContext& c) { return shard_heads(c, 0); }
ShardRuleResult shard_attention_gradient(const ShardContext& c) { return shard_heads(c, 3); }

const Op& attention_gradient_op = register_op({.name = "attention_gradient",
                                               .infer = infer_attention_gradient,
                                               .shard = shard_attention_gradient,
                                               .amp = AmpRule::low,
                                               .amp_keeps = input_bit(2) | input_bit(6)});

// With p = exp(s − log_sum), s = scale q kᵀ + mask and r = 0 or 1 / (1 − dropout), by which dropout multiplies p:
//   dv = (r p)ᵀ dy,  ds = p (r dy vᵀ − Σ dy y),  dq = scale ds k,  dk = scale dsᵀ q.
Tensors attention_rule(const GradientContext& c) {
  if (c.attributes().flag("has_mask") && c.needs(3))
    throw_error<GraphError>("[attention] the mask requires a gradient, which this op does not have; detach() it");
  std::vector<Tensor> inputs = {c.gradient(), c.output(0), c.output(1)};
  for (size_t i = 0; i < c.input_count(); ++i) inputs.push_back(c.input(i));
  Tensors gradients = trace_op_all(attention_gradient_op, inputs, c.attributes());
  while (gradients.size() < c.input_count()) gradients.push_back(Tensor());
  return gradients;
}

const Op& attention_op = register_op({.name = "attention",
                                      .infer = infer_attention,
                                      .gradient = attention_rule,
                                      .shard = shard_attention,
                                      .amp = AmpRule::low,
                                      .amp_keeps = input_bit(3)});

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options) {
  require_defined("scaled_dot_product_attention", {{"q", q}, {"k", k}, {"v", v}});
  double scale = options.scale;
  if (scale == 0 && q.rank() > 0 && q.size(-1) > 0) scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  if (!(options.dropout >= 0 && options.dropout <= 1))
    throw_error<ConfigError>("[attention] dropout is {}, expected a probability in [0, 1]", options.dropout);
  std::vector<Tensor> inputs = {q, k, v};
  if (Tensor mask = options.mask; mask.defined()) {
    if (mask.dtype() == DType::boolean)
      mask = where(mask, zeros(mask.shape(), DType::f32, mask.device()), -std::numeric_limits<double>::infinity());
    inputs.push_back(mask);
  }
  Trace& trace = Trace::current();
  if (options.dropout > 0) inputs.push_back(Tensor(trace.random_key(q.device())));
  Attributes attributes{{"causal", options.causal},
                        {"has_mask", options.mask.defined()},
                        {"scale", scale},
                        {"dropout", options.dropout},
                        {"number", options.dropout > 0 ? trace.next_random_number() : 0}};
  set_slice(attributes, options.slice);
  return trace_op(attention_op, inputs, std::move(attributes));
}

}  // namespace bonfire
