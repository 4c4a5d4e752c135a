#include "bonfire/ops/optimizer_update.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"

namespace bonfire {

namespace {

constexpr size_t kNumbers = 5;  // lr, weight_decay, first, second, eps

OptimizerRule rule_of(const Attributes& attributes) { return static_cast<OptimizerRule>(attributes.integer("rule")); }

// What optimizer_update gives; `more` inputs come after its own.
OutputSpecs infer_update(const InferContext& context, size_t more) {
  require_one_device(context);
  auto n = static_cast<size_t>(context.attributes.integer("parameters"));
  auto states = static_cast<size_t>(state_count(rule_of(context.attributes)));
  BONFIRE_CHECK(context.inputs.size() == kNumbers + 1 + (2 + states) * n + more, "{} has {} inputs", context.op.name,
                context.inputs.size());
  for (size_t i = 0; i < kNumbers; ++i) require_dtype(context, i, "a number", DType::f64);
  require_dtype(context, kNumbers, "counts", DType::i64);
  require_rank(context, kNumbers, "counts", 1);
  const std::span<const int64_t> places = context.attributes.list("places");
  BONFIRE_CHECK(places.size() == n, "{} has {} places for {} parameters", context.op.name, places.size(), n);
  for (int64_t place : places)
    BONFIRE_CHECK(place >= 0 && place < context.input(kNumbers).shape[0], "{} has a place {}", context.op.name, place);
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

OutputSpecs infer_optimizer_update(const InferContext& context) { return infer_update(context, 0); }

OutputSpecs infer_update_squares(const InferContext& context) {
  BONFIRE_CHECK(has_trust_ratio(rule_of(context.attributes)), "update_squares is of a rule without a trust ratio");
  infer_update(context, 0);
  return {{{2, context.attributes.integer("parameters")}, DType::f64, context.input(0).device}};
}

OutputSpecs infer_optimizer_update_by_squares(const InferContext& context) {  // …, squares
  BONFIRE_CHECK(has_trust_ratio(rule_of(context.attributes)), "a rule without a trust ratio has no squares");
  const size_t squares = context.inputs.size() - 1;
  require_dtype(context, squares, "squares", DType::f64);
  require_shape(context, squares, "squares", {2, context.attributes.integer("parameters")});
  return infer_update(context, 1);
}

// The norm, and the gradients, which are the inputs from `first` on.
OutputSpecs infer_clip(const InferContext& context, size_t first) {
  require_one_device(context);
  require_dtype(context, 0, "max_norm", DType::f64);
  bool wide = true;
  for (size_t i = first; i < context.inputs.size(); ++i) {
    require_floating(context, i, "a gradient");
    wide &= context.input(i).dtype == DType::f64;
  }
  OutputSpecs outputs = {{{}, wide ? DType::f64 : DType::f32, context.input(0).device}};
  for (size_t i = first; i < context.inputs.size(); ++i) outputs.push_back(context.input(i));
  return outputs;
}

OutputSpecs infer_clip_gradients(const InferContext& context) { return infer_clip(context, 1); }

OutputSpecs infer_clip_gradients_by_squares(const InferContext& context) {
  require_dtype(context, 1, "squares", DType::f64);
  require_shape(context, 1, "squares", {});
  return infer_clip(context, 2);
}

OutputSpecs infer_gradient_squares(const InferContext& context) {
  require_one_device(context);
  for (size_t i = 0; i < context.inputs.size(); ++i) require_floating(context, i, "a gradient");
  return {{{}, DType::f64, context.input(0).device}};
}

// Each parameter with its gradient and its states: as it is split itself.
ShardAnswer by_parameters(const ShardContext& c) {
  ShardAnswer answer = c.on_whole();
  const size_t first = kNumbers + 1, n = static_cast<size_t>(c.attributes.integer("parameters"));
  const auto lists = 2 + static_cast<size_t>(state_count(rule_of(c.attributes)));
  for (size_t i = 0; i < lists * n; ++i)
    if (const Sharding& parameter = c.shardings[first + i % n]; parameter.is_split())
      answer.inputs[first + i] = parameter;
  return answer;
}

// Inputs of a kind beside each other, as columns: those that are split and those that are whole in turn.
ShardRuleResult shard_update_squares(const ShardContext& c) {
  if (!c.first_split()) return {};
  ShardAnswer answer = by_parameters(c);
  answer.build = [](ShardBuilder& b) -> std::vector<GraphValue> {
    const ShardContext& context = b.context();
    const auto n = static_cast<size_t>(context.attributes.integer("parameters"));
    std::vector<GraphValue> inputs, runs;
    for (size_t i = 0; i < context.inputs.size(); ++i) inputs.push_back(b.input(i));
    const GraphValue own{b.add_node(context.op, std::move(inputs), context.attributes), 0};
    auto is_split = [&](size_t i) { return context.shardings[kNumbers + 1 + i].is_split(); };
    for (size_t begin = 0, end = 0; begin < n; begin = end) {
      while (end < n && is_split(end) == is_split(begin)) ++end;
      TensorSpec run = own.spec();
      run.dtype = DType::boolean;
      run.shape[1] = static_cast<int64_t>(end - begin);
      runs.push_back(b.constant(is_split(begin) ? 1 : 0, run));
    }
    const GraphValue all = b.all_reduce(own, ShardBuilder::Over::sum);
    return {b.add("where", {runs.size() == 1 ? runs[0] : b.add("concat", runs, {{"axis", 1}}), all, own})};
  };
  return answer;
}

ShardRuleResult shard_update_by_squares(const ShardContext& c) {
  ShardAnswer answer = by_parameters(c);
  const auto n = static_cast<size_t>(c.attributes.integer("parameters"));
  for (size_t i = 1; i < c.outputs.size(); ++i) answer.outputs[i] = answer.inputs[kNumbers + 1 + (i - 1) % n];
  return answer;
}

ShardRuleResult shard_gradient_squares(const ShardContext& c) {
  if (!c.first_split()) return {};
  ShardAnswer answer = c.on_whole();
  for (size_t i = 0; i < c.inputs.size(); ++i)
    if (c.shardings[i].is_split()) answer.inputs[i] = c.shardings[i];
  answer.build = [](ShardBuilder& b) -> std::vector<GraphValue> {
    std::vector<GraphValue> whole, split;  // the first are counted once
    for (size_t i = 0; i < b.context().inputs.size(); ++i)
      (b.context().shardings[i].is_split() ? split : whole).push_back(b.input(i));
    const GraphValue all = b.all_reduce(b.add("gradient_squares", split), ShardBuilder::Over::sum);
    return {whole.empty() ? all : b.add("add", {all, b.add("gradient_squares", whole)})};
  };
  return answer;
}

ShardRuleResult shard_clip_by_squares(const ShardContext& c) {  // max_norm, squares, gradients → norm, gradients
  ShardAnswer answer = c.on_whole();
  for (size_t i = 2; i < c.inputs.size(); ++i)
    if (c.shardings[i].is_split()) answer.inputs[i] = answer.outputs[i - 1] = c.shardings[i];
  return answer;
}

const Op& optimizer_update_op = register_op({.name = "optimizer_update", .infer = infer_optimizer_update});
const Op& update_squares_op =
    register_op({.name = "update_squares", .infer = infer_update_squares, .shard = shard_update_squares});
const Op& optimizer_update_by_squares_op = register_op({.name = "optimizer_update_by_squares",
                                                        .infer = infer_optimizer_update_by_squares,
                                                        .shard = shard_update_by_squares});
const Op& gradient_squares_op =
    register_op({.name = "gradient_squares", .infer = infer_gradient_squares, .shard = shard_gradient_squares});
const Op& clip_gradients_by_squares_op = register_op(
    {.name = "clip_gradients_by_squares", .infer = infer_clip_gradients_by_squares, .shard = shard_clip_by_squares});
[[maybe_unused]] const Op& clip_gradients_op =  // the pass fuse_norms makes it
    register_op({.name = "clip_gradients", .infer = infer_clip_gradients});

}  // namespace

UpdateOperands update_operands(const OptimizerUpdate& update, const UpdateCounts& counts,
                               std::span<const Tensor> parameters, std::span<const Tensor> gradients,
                               std::span<const Tensor> states) {
  UpdateOperands operands{.attributes = {{"rule", static_cast<int>(update.rule)},
                                         {"nesterov", update.nesterov},
                                         {"parameters", parameters.size()},
                                         {"places", counts.places}}};
  std::vector<Tensor>& inputs = operands.tensors;
  inputs.reserve(kNumbers + 1 + parameters.size() + gradients.size() + states.size() + 1);
  for (const Scalar& number : {update.lr, update.weight_decay, update.first, update.second, update.eps})
    inputs.push_back(number.tensor(DType::f64, counts.counts.device()));
  inputs.push_back(counts.counts);
  for (std::span<const Tensor> list : {parameters, gradients, states})
    inputs.insert(inputs.end(), list.begin(), list.end());
  return operands;
}

Tensor update_squares(const UpdateOperands& operands) {
  return trace_op(update_squares_op, operands.tensors, operands.attributes);
}

Tensors optimizer_update(const UpdateOperands& operands, const Tensor& squares) {
  BONFIRE_CHECK(squares.defined() == has_trust_ratio(rule_of(operands.attributes)),
                "squares are given to a rule without a trust ratio, or not to one that has it");
  if (!squares.defined()) return trace_op_all(optimizer_update_op, operands.tensors, operands.attributes);
  std::vector<Tensor> inputs = operands.tensors;
  inputs.push_back(squares);
  return trace_op_all(optimizer_update_by_squares_op, inputs, operands.attributes);
}

Tensor gradient_squares(std::span<const Tensor> gradients) { return trace_op(gradient_squares_op, gradients); }

Tensors clip_gradients(std::span<const Tensor> gradients, const Tensor& squares, const Scalar& max_norm) {
  std::vector<Tensor> inputs = {max_norm.tensor(DType::f64, gradients[0].device()), squares};
  inputs.insert(inputs.end(), gradients.begin(), gradients.end());
  return trace_op_all(clip_gradients_by_squares_op, inputs);
}

}  // namespace bonfire
