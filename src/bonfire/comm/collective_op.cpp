#include "bonfire/comm/collective_op.h"

#include <cstring>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::comm {

namespace {

// By the op's name.
std::map<std::string, DeedRule, std::less<>>& deed_rules() {
  static std::map<std::string, DeedRule, std::less<>> rules;
  return rules;
}

}  // namespace

const Op& register_collective(Op op, DeedRule deed) {
  op.traits |= Trait::collective | Trait::stateful;
  deed_rules().emplace(op.name, deed);
  return register_op(std::move(op));
}

std::string deed_of(const Op& op, const Attributes& attributes) {
  const auto found = deed_rules().find(op.name);
  if (found == deed_rules().end())
    throw_error<GraphError>("[{}] ranks do not know what to compare of it; register it by comm::register_collective",
                            op.name);
  return found->second == kComparedByTag ? "" : found->second(attributes);
}

int ranks_along(Axis axis) { return Trace::current().context().mesh.size(axis); }
int place_along(Axis axis) { return Trace::current().context().mesh.place(axis); }

void require_place(std::string_view op, Axis axis, int place) {
  const int ranks = ranks_along(axis);
  if (place < 0 || place >= ranks)
    throw_error<ConfigError>("[{}] rank {} is none of the {} along {}: expected 0 to {}{}", op, place, ranks,
                             name_of(axis), ranks - 1, in_current_module());
}

void require_other(std::string_view op, Axis axis, int place) {
  require_place(op, axis, place);
  if (place == place_along(axis))
    throw_error<ConfigError>("[{}] rank {} along {} is this rank itself; expected another one{}", op, place,
                             name_of(axis), in_current_module());
}

Axis axis_of(const Attributes& attributes) { return static_cast<Axis>(attributes.integer("axis")); }
int64_t ranks_of(const Attributes& attributes) { return attributes.integer("ranks"); }
Reduce reduce_of(const Attributes& attributes) { return static_cast<Reduce>(attributes.integer("reduce")); }

Line line_of(const GraphNode& node) {
  const bool named = node.attributes.has("communicator");
  return {.axis = axis_of(node.attributes),
          .kind = Line::Kind::collective,
          .number = named ? static_cast<int>(node.attributes.integer("communicator")) : 0};
}

Tensor through_maximum(const Tensor& value, const Tensor& maximum, const Tensor& gradient, Axis axis) {
  const Tensor winners = cast(equal(value, maximum), gradient.dtype());
  return winners * (gradient / all_reduce(winners, axis, Reduce::sum));
}

Around::Around(const TensorSpec& spec, const Layout& layout, int dim) : after(size_of(spec.dtype)) {
  bool found = false;
  for (int i = 0; i < spec.shape.rank(); ++i) {
    const int here = layout.order.rank() == 0 ? i : static_cast<int>(layout.order[i]);
    const auto size = static_cast<size_t>(spec.shape[here]);
    if (here == dim) {
      extent = size;
      found = true;
    } else {
      (found ? after : before) *= size;
    }
  }
}

void take_parts(const std::byte* array, const Around& around, size_t parts, std::byte* into) {
  const size_t piece = around.extent / parts * around.after;  // bytes
  if (piece == 0) return;
  for (size_t part = 0; part < parts; ++part)
    for (size_t i = 0; i < around.before; ++i)
      std::memcpy(into + (part * around.before + i) * piece, array + (i * parts + part) * piece, piece);
}

void put_parts(const std::byte* from, const Around& around, size_t parts, std::byte* array) {
  const size_t piece = around.extent / parts * around.after;  // bytes
  if (piece == 0) return;
  for (size_t part = 0; part < parts; ++part)
    for (size_t i = 0; i < around.before; ++i)
      std::memcpy(array + (i * parts + part) * piece, from + (part * around.before + i) * piece, piece);
}

}  // namespace bonfire::comm
