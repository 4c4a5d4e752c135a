#pragma once
// Sharding: how the ranks along the tensor axis hold a value, and the rule by which an op computes on parts. Users,
// shape rules and gradient rules see whole values; the pass `shard` asks each op's rule, node by node, how its inputs
// should lie and how its outputs then do, makes shapes and attributes local, and puts collectives where that does not
// meet (passes/shard.h).
//
// A rule stands beside the op's shape rule and gradient rule:
//
//   std::optional<ShardAnswer> shard_softmax(const ShardContext& c) {  // rows are independent of each other
//     const std::optional<size_t> split = c.first_split();
//     if (!split || c.shardings[*split].axis == c.attributes.integer("axis")) return {};  // on whole values
//     return shard_alike(c, c.shardings[*split]);
//   }

#include <optional>
#include <span>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/graph/op.h"

namespace bonfire {

struct Sharding {
  enum class Kind : uint8_t {
    whole,   // every rank has all of it
    split,   // rank i has the i-th part of an axis, or of each of `blocks` of it (graph/slice.h)
    partial  // the value is the sum of what the ranks have
  };
  Kind kind = Kind::whole;
  int axis = 0;
  int64_t blocks = 1;

  static Sharding split(int axis, int64_t blocks = 1) { return {Kind::split, axis, blocks}; }
  static Sharding partial() { return {Kind::partial}; }
  bool is_whole() const { return kind == Kind::whole; }
  bool is_split() const { return kind == Kind::split; }
  bool is_split(int along) const { return is_split() && axis == along; }
  bool is_partial() const { return kind == Kind::partial; }
  friend bool operator==(const Sharding&, const Sharding&) = default;
};
std::string to_string(const Sharding& sharding);  // "whole", "split 1", "split 0 in 3 blocks", "partial sums"

class ShardBuilder;

// How a node computes on parts. As it comes from ShardContext::on_whole() everything is whole and nothing changes.
struct ShardAnswer {
  std::vector<Sharding> inputs, outputs;
  Attributes attributes;  // local ones
  // Of a sum of two inputs: what is whole is added once, when the partial sums of the other are complete.
  bool adds_later = false;
  // In place of one node of the same op: makes others of the local inputs, and returns the local outputs.
  std::vector<GraphValue> (*build)(ShardBuilder& builder) = nullptr;
};

struct ShardContext {
  const Op& op;
  const Attributes& attributes;
  std::span<const TensorSpec> inputs, outputs;  // whole ones
  std::span<const Sharding> shardings;          // of the inputs, as they are now
  std::optional<Sharding> wanted = {};          // how whoever reads output 0 wants it
  int64_t parts = 1, place = 0;                 // ranks along the tensor axis, and this one's number

  std::optional<size_t> first_split() const;  // the input that is split; of several the largest
  bool any_partial() const;
  bool can_split(const Shape& shape, const Sharding& sharding) const;  // in equal parts
  Shape local(const Shape& shape, const Sharding& sharding) const;
  ShardAnswer on_whole() const;
};

// What a rule's build() makes its nodes with.
class ShardBuilder {
 public:
  virtual ~ShardBuilder() = default;
  virtual const ShardContext& context() const = 0;
  virtual GraphValue input(size_t i) const = 0;  // local, as the answer has asked for it
  virtual GraphValue add(std::string_view op, std::vector<GraphValue> inputs, Attributes attributes = {}) = 0;
  virtual GraphNode* add_node(const Op& op, std::vector<GraphValue> inputs, Attributes attributes) = 0;
  enum class Over : uint8_t { sum, max };
  virtual GraphValue all_reduce(GraphValue value, Over over) = 0;

  GraphValue reshape(GraphValue value, const Shape& shape);
  GraphValue constant(int64_t value, const TensorSpec& spec);
};

// Rules that several ops share.
using ShardRuleResult = std::optional<ShardAnswer>;
// All inputs and outputs, which have the axis, are split along it.
ShardRuleResult shard_alike(const ShardContext& context, const Sharding& sharding);
ShardRuleResult shard_elementwise(const ShardContext& context);  // inputs broadcast to the output
ShardRuleResult shard_linear(const ShardContext& context);       // that, and of partial sums partial sums
ShardRuleResult shard_one_by_one(const ShardContext& context);   // output i is made of input i

}  // namespace bonfire
