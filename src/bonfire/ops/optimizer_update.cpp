#include "bonfire/ops/optimizer_update.h"

#include "bonfire/base/error.h"
#include "bonfire/ops/checks.h"

namespace bonfire {

namespace {

constexpr size_t kNumbers = 5;  // lr, weight_decay, first, second, eps

OutputSpecs infer_optimizer_update(const InferContext& context) {
  require_one_device(context);
  auto rule = static_cast<OptimizerRule>(context.attributes.integer("rule"));
  auto n = static_cast<size_t>(context.attributes.integer("parameters"));
  auto states = static_cast<size_t>(state_count(rule));
  BONFIRE_CHECK(context.inputs.size() == kNumbers + 1 + (2 + states) * n, "optimizer_update has {} inputs",
                context.inputs.size());
  for (size_t i = 0; i < kNumbers; ++i) require_dtype(context, i, "a number", DType::f64);
  require_dtype(context, kNumbers, "counts", DType::i64);
  require_rank(context, kNumbers, "counts", 1);
  const std::span<const int64_t> places = context.attributes.list("places");
  BONFIRE_CHECK(places.size() == n, "optimizer_update has {} places for {} parameters", places.size(), n);
  for (int64_t place : places)
    BONFIRE_CHECK(place >= 0 && place < context.input(kNumbers).shape[0], "optimizer_update has a place {}", place);
  const size_t first = kNumbers + 1;
  OutputSpecs outputs = {context.input(kNumbers)};
  for (size_t i = 0; i < (2 + states) * n; ++i) {
    const TensorSpec& parameter = context.input(first + i % n);
    const char* role = i < n ? "a parameter" : i < 2 * n ? "a gradient" : "a state";
    require_floating(context, first + i, role);
    require_shape(context, first + i, role, parameter.shape);
    DType compute = parameter.dtype == DType::f64 ? DType::f64 : DType::f32;
    require_dtype(context, first + i, role, i < 2 * n ? parameter.dtype : compute);
    if (i < n || i >= 2 * n) outputs.push_back(context.input(first + i));
  }
  return outputs;
}

OutputSpecs infer_clip_gradients(const InferContext& context) {  // max_norm, gradients
  require_one_device(context);
  require_dtype(context, 0, "max_norm", DType::f64);
  bool wide = true;
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    require_floating(context, i, "a gradient");
    wide &= context.input(i).dtype == DType::f64;
  }
  OutputSpecs outputs = {{{}, wide ? DType::f64 : DType::f32, context.input(0).device}};
  for (size_t i = 1; i < context.inputs.size(); ++i) outputs.push_back(context.input(i));
  return outputs;
}

const Op& optimizer_update_op = register_op({.name = "optimizer_update", .infer = infer_optimizer_update});
const Op& clip_gradients_op = register_op({.name = "clip_gradients", .infer = infer_clip_gradients});

}  // namespace

Tensors optimizer_update(const OptimizerUpdate& update, const UpdateCounts& counts, std::span<const Tensor> parameters,
                         std::span<const Tensor> gradients, std::span<const Tensor> states) {
  std::vector<Tensor> inputs;
  inputs.reserve(kNumbers + 1 + parameters.size() + gradients.size() + states.size());
  for (const Scalar& number : {update.lr, update.weight_decay, update.first, update.second, update.eps})
    inputs.push_back(number.tensor(DType::f64, counts.counts.device()));
  inputs.push_back(counts.counts);
  for (std::span<const Tensor> list : {parameters, gradients, states})
    inputs.insert(inputs.end(), list.begin(), list.end());
  return trace_op_all(optimizer_update_op, inputs,
                      {{"rule", static_cast<int>(update.rule)},
                       {"nesterov", update.nesterov},
                       {"parameters", parameters.size()},
                       {"places", counts.places}});
}

Tensors clip_gradients(std::span<const Tensor> gradients, const Scalar& max_norm) {
  std::vector<Tensor> inputs = {max_norm.tensor(DType::f64, gradients[0].device())};
  inputs.insert(inputs.end(), gradients.begin(), gradients.end());
  return trace_op_all(clip_gradients_op, inputs);
}

}  // namespace bonfire
