#include "bonfire/graph/device_copies.h"

#include <algorithm>
#include <optional>

#include "bonfire/graph/trace.h"

namespace bonfire {

namespace {

OutputSpecs infer_copy_to_device(const InferContext& context) {
  TensorSpec spec = context.input(0);
  spec.device = {static_cast<DeviceType>(context.attributes.integer("device_type")),
                 static_cast<int16_t>(context.attributes.integer("device_index"))};
  return {spec};
}

Tensors copy_to_device_gradient(const GradientContext& c) { return {c.gradient().to(c.input_spec(0).device)}; }

const Op& copy_to_device_op =
    register_op({.name = "copy_to_device", .infer = infer_copy_to_device, .gradient = copy_to_device_gradient});

std::optional<Device> meeting_place(const NodeInputs& operands) {
  std::optional<Device> of_variables, of_computed;
  bool variables_agree = true;
  for (const Value& operand : operands) {
    const Device device = operand.spec().device;
    if (operand.node->leaf == LeafKind::variable) {
      variables_agree &= !of_variables || *of_variables == device;
      of_variables = device;
    }
    if (!operand.node->is_leaf() && !of_computed) of_computed = device;
  }
  return of_variables && variables_agree ? of_variables : of_computed;
}

// A copy that this thread has pending already, with a history if this one is to have one.
NodePtr known_copy(const Value& value, Device device, bool recorded) {
  for (const NodePtr& node : Trace::current().nodes())
    if (node->op == &copy_to_device_op && node->inputs[0] == value && node->outputs[0].spec.device == device &&
        node->recorded == recorded && !node->consumed)
      return node;
  return {};
}

// Made there in the first place.
Value constant_on(const Node& constant, Device device) {
  Attributes attributes = constant.attributes;
  attributes.set({"device_type", static_cast<int>(device.type)});
  attributes.set({"device_index", device.index});
  return trace_op(*constant.op, std::initializer_list<OpInput>{}, std::move(attributes)).value();
}

// Numbers of the host and constants need no copy.
Value copy_on(const Value& value, Device device) {
  const Node& node = *value.node;
  if (value.spec().device == device) return value;
  if (node.leaf == LeafKind::scalar) return Trace::current().scalar(node.scalar, value.spec().dtype, device);
  const bool recorded = grad_enabled() && node.outputs[value.index].requires_grad;
  if (!recorded && node.op != nullptr && node.op->has(Trait::constant)) return constant_on(node, device);
  if (NodePtr known = known_copy(value, device, recorded)) return {std::move(known), 0};
  return trace_op(copy_to_device_op, {Tensor(value)},
                  {{"device_type", static_cast<int>(device.type)}, {"device_index", device.index}})
      .value();
}

}  // namespace

void bring_together(NodeInputs& operands) {
  auto elsewhere = [&](const Value& operand) { return operand.spec().device != operands[0].spec().device; };
  if (std::none_of(operands.begin(), operands.end(), elsewhere)) return;
  const std::optional<Device> device = meeting_place(operands);
  if (!device) return;
  for (Value& operand : operands) operand = copy_on(operand, *device);
}

Tensor Tensor::to(Device device) const {
  if (known("to").device == device) return *this;
  require_device(device);
  return Tensor(copy_on(value_, device));
}

}  // namespace bonfire
