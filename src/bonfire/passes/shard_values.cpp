#include "bonfire/passes/shard_values.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/comm/all_reduce.h"

namespace bonfire::passes {

namespace {

const Sharding kWhole;

Attributes along_tensor(int dim, int64_t ranks) {
  return {{"axis", static_cast<int>(Axis::tensor)}, {"dim", dim}, {"ranks", ranks}};
}

Shape ones_like(const Shape& shape) {
  Shape ones = shape;
  for (int i = 0; i < ones.rank(); ++i) ones[i] = 1;
  return ones;
}

// The axis as [a, b, …] in place of one.
Shape with_axis(const Shape& shape, int axis, std::initializer_list<int64_t> parts) {
  Shape result;
  for (int i = 0; i < shape.rank(); ++i) {
    if (i != axis) result.push_back(shape[i]);
    if (i == axis)
      for (int64_t part : parts) result.push_back(part);
  }
  return result;
}

}  // namespace

const Sharding& ShardValues::sharding(GraphValue value) const {
  auto found = held_.find({value.node, value.index});
  return found == held_.end() ? kWhole : found->second.sharding;
}

bool ShardValues::is_as_traced(GraphValue value) const { return !held_.contains({value.node, value.index}); }

void ShardValues::set(GraphValue value, const Sharding& sharding, GraphValue local, GraphValue added) {
  held_[{value.node, value.index}] = {sharding, local, added, {}};
}

GraphValue ShardValues::added_later(GraphValue value) const {
  auto found = held_.find({value.node, value.index});
  return found == held_.end() ? GraphValue{} : found->second.added;
}

GraphValue ShardValues::as(GraphValue value, const Sharding& wanted, GraphNode* before, const GraphNode& like,
                           const Op* reader) {
  auto [found, is_new] = held_.try_emplace({value.node, value.index}, Held{{}, value, {}, {}});
  Held& held = found->second;
  const bool lies_so = held.sharding == wanted;
  if (lies_so) {
    const GraphValue local = held.local;
    if (is_new) held_.erase(found);
    return local;
  }
  for (const auto& [sharding, other] : held.other)
    if (sharding == wanted) return other;
  BONFIRE_CHECK(!wanted.is_partial(), "a value cannot be made partial sums");
  // Partial sums are completed where they are made, so that no pipeline stage is sent terms of them.
  const bool completes = held.sharding.is_partial() && value.node->phase == like.phase;
  const GraphNode& home = completes ? *value.node : like;
  GraphValue result;
  const bool scatters = held.sharding.is_partial() && !held.added && wanted.is_split() && wanted.blocks == 1;
  if (wanted.is_whole()) {
    result = make_whole(held, before, home, reader);
  } else if (scatters) {
    Attributes attributes = along_tensor(wanted.axis, parts_);
    attributes.set({"reduce", static_cast<int>(comm::Reduce::sum)});
    result = {graph_.add_like(home, find_op("reduce_scatter"), {held.local}, attributes, before), 0};
  } else {
    result = own_part(as(value, {}, before, like, reader), wanted, before, like);
  }
  held_[{value.node, value.index}].other.emplace_back(wanted, result);
  return result;
}

GraphValue ShardValues::make_whole(const Held& held, GraphNode* before, const GraphNode& like, const Op* reader) {
  if (held.sharding.is_split()) return gather(held.local, held.sharding, before, like, reader);
  const GraphValue sum{graph_.add_like(like, comm::all_reduce_op(), {held.local},
                                       comm::all_reduce_attributes(Axis::tensor, comm::Reduce::sum), before),
                       0};
  if (!held.added) return sum;
  return {graph_.add_like(like, find_op("add"), {sum, held.added}, {}, before), 0};
}

// What ranks have stands side by side, [ranks, blocks, rest]; the whole has it as [blocks, ranks, rest].
GraphValue ShardValues::gather(GraphValue local, const Sharding& split, GraphNode* before, const GraphNode& like,
                               const Op* reader) {
  Attributes attributes = along_tensor(split.axis, parts_);
  attributes.set({"reader", reader == nullptr ? -1 : reader->id});
  const GraphValue all{graph_.add_like(like, find_op("all_gather"), {local}, attributes, before), 0};
  if (split.blocks == 1) return all;
  const Shape shape = all.spec().shape;
  const int64_t rest = shape[split.axis] / (parts_ * split.blocks);
  Shape axes;
  for (int i = 0; i < shape.rank() + 2; ++i) axes.push_back(i);
  std::swap(axes[split.axis], axes[split.axis + 1]);
  GraphNode* apart = graph_.add_like(like, find_op("reshape"), {all},
                                     {{"shape", with_axis(shape, split.axis, {parts_, split.blocks, rest})}}, before);
  GraphNode* in_order = graph_.add_like(like, find_op("permute"), {{apart, 0}}, {{"axes", axes}}, before);
  return {graph_.add_like(like, find_op("reshape"), {{in_order, 0}}, {{"shape", shape}}, before), 0};
}

GraphValue ShardValues::own_part(GraphValue whole, const Sharding& split, GraphNode* before, const GraphNode& like) {
  const Shape shape = whole.spec().shape;
  const int64_t part = shape[split.axis] / (parts_ * split.blocks);
  const bool packed = split.blocks > 1;
  const int axis = packed ? split.axis + 1 : split.axis;
  Shape extents = packed ? with_axis(shape, split.axis, {split.blocks, part * parts_}) : shape;
  if (packed) whole = {graph_.add_like(like, find_op("reshape"), {whole}, {{"shape", extents}}, before), 0};
  Shape begin = extents;
  for (int i = 0; i < begin.rank(); ++i) begin[i] = i == axis ? place_ * part : 0;
  extents[axis] = part;
  const GraphValue own{graph_.add_like(like, find_op("slice"), {whole},
                                       {{"begin", begin}, {"extents", extents}, {"steps", ones_like(extents)}}, before),
                       0};
  if (!packed) return own;
  Shape local = shape;
  local[split.axis] /= parts_;
  return {graph_.add_like(like, find_op("reshape"), {own}, {{"shape", local}}, before), 0};
}

}  // namespace bonfire::passes
