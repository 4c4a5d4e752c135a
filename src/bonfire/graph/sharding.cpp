#include "bonfire/graph/sharding.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire {

std::string to_string(const Sharding& sharding) {
  if (sharding.is_whole()) return "whole";
  if (sharding.is_partial()) return "partial sums";
  return sharding.blocks == 1 ? fmt::format("split {}", sharding.axis)
                              : fmt::format("split {} in {} blocks", sharding.axis, sharding.blocks);
}

std::optional<size_t> ShardContext::first_split() const {
  std::optional<size_t> found;
  for (size_t i = 0; i < shardings.size(); ++i)
    if (shardings[i].is_split() && (!found || inputs[i].bytes() > inputs[*found].bytes())) found = i;
  return found;
}

bool ShardContext::any_partial() const {
  return std::ranges::any_of(shardings, [](const Sharding& one) { return one.is_partial(); });
}

bool ShardContext::can_split(const Shape& shape, const Sharding& sharding) const {
  if (!sharding.is_split()) return true;
  return sharding.axis < shape.rank() && shape[sharding.axis] > 0 &&
         shape[sharding.axis] % (parts * sharding.blocks) == 0;
}

Shape ShardContext::local(const Shape& shape, const Sharding& sharding) const {
  Shape result = shape;
  if (sharding.is_split()) result[sharding.axis] /= parts;
  return result;
}

ShardAnswer ShardContext::on_whole() const {
  return {.inputs = std::vector<Sharding>(inputs.size()),
          .outputs = std::vector<Sharding>(outputs.size()),
          .attributes = attributes};
}

GraphValue ShardBuilder::reshape(GraphValue value, const Shape& shape) {
  return value.spec().shape == shape ? value : add("reshape", {value}, {{"shape", shape}});
}

GraphValue ShardBuilder::constant(int64_t value, const TensorSpec& spec) {
  return add("constant", {},
             {{"shape", spec.shape},
              {"value", value},
              {"dtype", spec.dtype},
              {"device_type", static_cast<int>(spec.device.type)},
              {"device_index", spec.device.index}});
}

ShardRuleResult shard_alike(const ShardContext& c, const Sharding& sharding) {
  auto fits = [&](const TensorSpec& spec) { return c.can_split(spec.shape, sharding); };
  if (!std::ranges::all_of(c.inputs, fits) || !std::ranges::all_of(c.outputs, fits)) return {};
  ShardAnswer answer = c.on_whole();
  std::ranges::fill(answer.inputs, sharding);
  std::ranges::fill(answer.outputs, sharding);
  return answer;
}

ShardRuleResult shard_elementwise(const ShardContext& c) {
  const std::optional<size_t> leader = c.first_split();
  if (!leader) return {};
  const Shape& result = c.outputs[0].shape;
  const Sharding& split = c.shardings[*leader];
  const int axis = split.axis + result.rank() - c.inputs[*leader].shape.rank();
  ShardAnswer answer = c.on_whole();
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Shape& shape = c.inputs[i].shape;
    const int own = axis - (result.rank() - shape.rank());
    if (own >= 0 && shape[own] == result[axis]) answer.inputs[i] = Sharding::split(own, split.blocks);
  }
  for (Sharding& output : answer.outputs) output = Sharding::split(axis, split.blocks);
  return answer;
}

ShardRuleResult shard_linear(const ShardContext& c) {
  if (c.first_split()) return shard_elementwise(c);
  if (std::ranges::count_if(c.shardings, [](const Sharding& one) { return one.is_partial(); }) != 1) return {};
  ShardAnswer answer = c.on_whole();
  std::ranges::copy(c.shardings, answer.inputs.begin());
  answer.outputs[0] = Sharding::partial();
  return answer;
}

ShardRuleResult shard_one_by_one(const ShardContext& c) {
  ShardAnswer answer = c.on_whole();
  for (size_t i = 0; i < c.inputs.size(); ++i)
    if (c.shardings[i].is_split()) answer.inputs[i] = answer.outputs[i] = c.shardings[i];
  return answer;
}

}  // namespace bonfire
