#include "bonfire/graph/op.h"

#include <deque>
#include <map>
#include <mutex>

#include "bonfire/base/error.h"
#include "bonfire/base/nearest.h"
#include "bonfire/graph/all_ops.h"
#include "bonfire/graph/device_copies.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/trace.h"

namespace bonfire {

namespace {

struct OpRegistry {
  std::mutex mutex;
  std::deque<Op> ops;  // addresses stay
  std::map<std::string, const Op*, std::less<>> by_name;
};

OpRegistry& op_registry() {
  static OpRegistry registry;
  return registry;
}

[[noreturn]] void fail_number_check(const Node& node, size_t output, double value) {
  std::string path = node.path == nullptr ? "" : " in module " + *node.path;
  std::string text = fmt::format("[{}]{} produced {} in output {} ({}); inputs were finite or checked before",
                                 node.op->name, path, value, output, to_string(node.outputs[output].spec));
  StepContext::current().tell_failure(text);
  throw GraphError(text);
}

// The debug mode: run what was just traced, and look at it.
void run_and_check(const NodePtr& node) {
  base::InlineVector<Tensor, 2> outputs;
  for (uint32_t i = 0; i < node->outputs.size(); ++i) outputs.push_back(Tensor(Value{node, i}));
  engine().commit(Trace::current());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    for (double value : outputs[i].to_vector<double>())
      if (!(value - value == 0)) fail_number_check(*node, i, value);
  }
}

NodeInputs values_of(std::initializer_list<OpInput> inputs) {
  NodeInputs values;
  values.reserve(inputs.size());
  for (const OpInput& input : inputs) values.push_back(input.value);
  return values;
}

NodeInputs values_of(std::span<const Tensor> inputs) {
  NodeInputs values;
  values.reserve(inputs.size());
  for (const Tensor& input : inputs) values.push_back(input.value());
  return values;
}

NodePtr append_checked(const Op& op, NodeInputs&& inputs, Attributes&& attributes) {
  for (const Value& input : inputs)
    if (!input)
      throw_error<GraphError>("[{}] input {} is an undefined tensor{}; give it a value first", op.name,
                              &input - inputs.data(), in_current_module());
  bring_together(inputs);
  NodePtr node = Trace::current().append(op, std::move(inputs), std::move(attributes));
  if (check_numbers() && !TraceScope::active()) [[unlikely]]
    run_and_check(node);
  return node;
}

Tensors outputs_of(const NodePtr& node) {
  Tensors outputs;
  outputs.reserve(node->outputs.size());
  for (uint32_t i = 0; i < node->outputs.size(); ++i) outputs.emplace_back(Value{node, i});
  return outputs;
}

}  // namespace

const Op& register_op(Op op) {
  OpRegistry& registry = op_registry();
  std::lock_guard lock(registry.mutex);
  if (registry.by_name.contains(op.name)) throw_error<ConfigError>("[op] '{}' is registered twice", op.name);
  op.id = static_cast<int>(registry.ops.size()) + 1;
  const Op& kept = registry.ops.emplace_back(std::move(op));
  registry.by_name[kept.name] = &kept;
  return kept;
}

std::vector<const Op*> all_ops() {
  OpRegistry& registry = op_registry();
  std::lock_guard lock(registry.mutex);
  std::vector<const Op*> ops;
  for (const auto& [name, op] : registry.by_name) ops.push_back(op);
  return ops;
}

const Op& op_of_id(int id) {
  OpRegistry& registry = op_registry();
  std::lock_guard lock(registry.mutex);
  return registry.ops.at(static_cast<size_t>(id) - 1);
}

const Op& find_op(std::string_view name) {
  OpRegistry& registry = op_registry();
  std::lock_guard lock(registry.mutex);
  if (auto found = registry.by_name.find(name); found != registry.by_name.end()) return *found->second;
  std::vector<std::string> names;
  for (const auto& [known, op] : registry.by_name) names.push_back(known);
  throw_error<ConfigError>("[op] there is no op '{}'; the nearest name is '{}'", name, base::nearest(name, names));
}

Tensor GradientContext::input(size_t i) const { return Tensor(node_.inputs[i]); }
Tensor GradientContext::output(size_t i) const {
  return Tensor(Value{NodePtr(const_cast<Node*>(&node_)), static_cast<uint32_t>(i)});
}
bool GradientContext::needs(size_t i) const {
  const Value& input = node_.inputs[i];
  return input.node->outputs[input.index].requires_grad;
}
size_t GradientContext::input_count() const { return node_.inputs.size(); }
const TensorSpec& GradientContext::input_spec(size_t i) const { return node_.inputs[i].spec(); }
const Attributes& GradientContext::attributes() const { return node_.attributes; }

Tensor trace_op(const Op& op, std::initializer_list<OpInput> inputs, Attributes attributes) {
  return Tensor(Value{append_checked(op, values_of(inputs), std::move(attributes)), 0});
}

Tensor trace_op(const Op& op, std::span<const Tensor> inputs, Attributes attributes) {
  return Tensor(Value{append_checked(op, values_of(inputs), std::move(attributes)), 0});
}

Tensors trace_op_all(const Op& op, std::initializer_list<OpInput> inputs, Attributes attributes) {
  return outputs_of(append_checked(op, values_of(inputs), std::move(attributes)));
}

Tensors trace_op_all(const Op& op, std::span<const Tensor> inputs, Attributes attributes) {
  return outputs_of(append_checked(op, values_of(inputs), std::move(attributes)));
}

std::string describe_inputs(const InferContext& context) {
  std::string text;
  for (const TensorSpec* spec : context.inputs) text += (text.empty() ? "" : ", ") + to_string(*spec);
  return text;
}

}  // namespace bonfire
