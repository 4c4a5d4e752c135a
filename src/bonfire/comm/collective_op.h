#pragma once
// What the files of the collective ops share. Attributes that all of them have: axis, and `ranks`, how many there are
// along it, where the shape rule asks for it.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "bonfire/comm/axis_groups.h"
#include "bonfire/comm/collectives.h"
#include "bonfire/graph/op.h"

namespace bonfire::comm {

// Of the mesh of the step that is being traced.
int ranks_along(Axis axis);
int place_along(Axis axis);
// ConfigError for a place that is none, naming the op and the axis.
void require_place(std::string_view op, Axis axis, int place);
// ConfigError where it is this rank's own place, too.
void require_other(std::string_view op, Axis axis, int place);

// What is done with the operands of a collective, before their names: "mean of ". Ranks compare it before the step
// makes one (comm/agreement.h).
using DeedRule = std::string (*)(const Attributes&);
// Messages are compared by their receiver instead, each by its tag.
inline constexpr DeedRule kComparedByTag = nullptr;

// register_op for what several ranks compute together: Trait::collective and Trait::stateful are set here and nowhere
// else, so that none is without a rule.
const Op& register_collective(Op op, DeedRule deed);
// Empty for a message. An op that has the trait by another way is a GraphError, which names it.
std::string deed_of(const Op& op, const Attributes& attributes);

Axis axis_of(const Attributes& attributes);
int64_t ranks_of(const Attributes& attributes);
Reduce reduce_of(const Attributes& attributes);
Line line_of(const GraphNode& node);  // of its communicator, the first where it names none

// The gradient of a maximum over ranks: `gradient` where `value` is that maximum; ranks with equal ones share it.
Tensor through_maximum(const Tensor& value, const Tensor& maximum, const Tensor& gradient, Axis axis);

// The extents of a dense array around one dimension, in the order in which they lie in memory.
struct Around {
  size_t before = 1, extent = 1;
  size_t after = 1;  // bytes

  Around(const TensorSpec& spec, const Layout& layout, int dim);
  size_t bytes() const { return before * extent * after; }
  bool parts_are_whole() const { return before == 1; }  // each lies in one piece
};
// Between an array and its parts along the dimension, which lie one after the other, [parts].
void take_parts(const std::byte* array, const Around& around, size_t parts, std::byte* into);
void put_parts(const std::byte* from, const Around& around, size_t parts, std::byte* array);

// Memory that grows to what is needed, and keeps it.
class Scratch {
 public:
  std::byte* room(size_t bytes) {
    if (memory_.size() < bytes) memory_.resize(bytes);
    return memory_.data();
  }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace bonfire::comm
