#include "bonfire/ops/dropout.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
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

const Op& dropout_op =
    register_op({.name = "dropout", .infer = infer_dropout, .gradient = dropout_rule, .traits = Trait::random});

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
