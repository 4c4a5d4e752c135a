#include "bonfire/ops/dropout.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/random_places.h"

namespace bonfire {

namespace {

OutputSpecs infer_dropout(const InferContext& context) {  // x, key
  require_one_device(context);
  require_floating(context, 0, "x");
  require_slice(context, context.input(0).shape);
  return {context.input(0)};
}

Tensors dropout_rule(const GradientContext& c);

// A part draws the numbers that it has in the whole.
ShardRuleResult shard_dropout(const ShardContext& c) {
  const Sharding& split = c.shardings[0];
  if (!split.is_split() || split.blocks != 1 || c.attributes.has("whole")) return {};
  const Shape& whole = c.inputs[0].shape;
  RandomSlice slice{.whole = whole, .offset = whole, .stride = whole};
  for (int i = 0; i < whole.rank(); ++i) {
    slice.offset[i] = i == split.axis ? c.place * (whole[i] / c.parts) : 0;
    slice.stride[i] = 1;
  }
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = answer.outputs[0] = split;
  set_slice(answer.attributes, slice);
  return answer;
}

const Op& dropout_op = register_op({.name = "dropout",
                                    .infer = infer_dropout,
                                    .gradient = dropout_rule,
                                    .shard = shard_dropout,
                                    .traits = Trait::random});

// The same mask and scale applied to dy.
Tensors dropout_rule(const GradientContext& c) {
  return {trace_op(dropout_op, {c.gradient(), c.input(1)}, c.attributes()), Tensor()};
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training, const RandomSlice& slice) {
  if (!(p >= 0 && p <= 1)) throw_error<ConfigError>("[dropout] p is {}, expected a probability in [0, 1]", p);
  require_defined("dropout", {{"x", x}});
  if (!training || p == 0) return x;
  Trace& trace = Trace::current();
  Attributes attributes{{"p", p}, {"number", trace.next_random_number()}};
  set_slice(attributes, slice);
  return trace_op(dropout_op, {x, Tensor(trace.random_key(x.device()))}, std::move(attributes));
}

}  // namespace bonfire
