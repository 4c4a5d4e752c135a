#include "bonfire/passes/time_axis.h"

#include <algorithm>

#include "bonfire/ops/random_places.h"

namespace bonfire::passes {

namespace {

bool is_op(const GraphNode& node, std::string_view name) { return !node.is_input() && node.name() == name; }

int64_t product(const Shape& shape, int begin, int end) {
  int64_t count = 1;
  for (int i = begin; i < end; ++i) count *= shape[i];
  return count;
}

// The axis of another shape of the same elements, in row-major order, along which time runs.
std::optional<TimeAxis> reshaped(const Shape& from, TimeAxis time, const Shape& to, int64_t times) {
  const int64_t before = product(from, 0, time.axis), inner = time.each * product(from, time.axis + 1, from.rank());
  for (int i = 0; i < to.rank(); ++i)
    if (product(to, 0, i) == before && to[i] > 0 && to[i] % times == 0 &&
        to[i] / times * product(to, i + 1, to.rank()) == inner)
      return TimeAxis{i, to[i] / times};
  return {};
}

// Of a product of matrices: along which axis of each operand rows or columns of the result run, and along which sums.
struct MatrixAxes {
  explicit MatrixAxes(const GraphNode& node)
      : is_known(node.inputs[0].spec().shape.rank() == 2 && node.inputs[1].spec().shape.rank() == 2),
        outer{node.attributes.flag("transpose_a") ? 1 : 0, node.attributes.flag("transpose_b") ? 0 : 1} {}

  bool is_known;
  int outer[2];
};

// Inputs that are broadcast along time are read whole.
TimeAxes elementwise_inputs(const GraphNode& node, TimeAxis result) {
  TimeAxes inputs;
  for (const GraphValue& input : node.inputs) {
    const Shape& shape = input.spec().shape;
    const int axis = result.axis - (node.outputs[0].shape.rank() - shape.rank());
    const bool is_whole = axis < 0 || shape[axis] != node.outputs[0].shape[result.axis];
    inputs.push_back(is_whole ? std::nullopt : std::optional(TimeAxis{axis, result.each}));
  }
  return inputs;
}

bool is_elementwise(const GraphNode& node) { return node.op->has(Trait::elementwise) && node.outputs.size() == 1; }

}  // namespace

std::optional<TimeAxes> times_of_inputs(const GraphNode& node, TimeAxis result, int64_t times) {
  if (node.is_input()) return {};
  if (is_elementwise(node)) return elementwise_inputs(node, result);
  if (is_op(node, "dropout")) return TimeAxes{result, {}};
  if (is_op(node, "reshape")) {
    const auto time = reshaped(node.outputs[0].shape, result, node.inputs[0].spec().shape, times);
    return time ? std::optional(TimeAxes{time}) : std::nullopt;
  }
  if (is_op(node, "permute"))
    return TimeAxes{TimeAxis{static_cast<int>(node.attributes.ints("axes")[result.axis]), result.each}};
  if (is_op(node, "embedding") && result.axis + 1 < node.outputs[0].shape.rank()) return TimeAxes{{}, result};
  if (is_op(node, "matmul")) {
    const MatrixAxes axes(node);
    if (!axes.is_known) return {};
    if (result.axis == 0) return TimeAxes{TimeAxis{axes.outer[0], result.each}, {}};
    return TimeAxes{{}, TimeAxis{axes.outer[1], result.each}};
  }
  if (is_op(node, "sum")) {
    const Shape axes = node.attributes.ints("axes");
    const bool keeps = node.attributes.flag("keepdim");
    int axis = result.axis;
    for (int i = 0; i < axes.rank(); ++i) {
      if (keeps && axes[i] == axis) return {};
      if (!keeps && axes[i] <= axis) ++axis;
    }
    return TimeAxes{TimeAxis{axis, result.each}};
  }
  return {};
}

namespace {

// Where the input's time is that of the result, or of a sum over it.
std::optional<TimeReader> sum_over_time(const GraphNode& node, size_t input, TimeAxis time) {
  if (is_op(node, "matmul")) {
    const MatrixAxes axes(node);
    if (!axes.is_known || time.axis == axes.outer[input]) return {};
    return TimeReader{{}, {TimeAxis{1 - axes.outer[0], time.each}, TimeAxis{1 - axes.outer[1], time.each}}};
  }
  if (is_op(node, "sum")) {
    const Shape axes = node.attributes.ints("axes");
    if (std::find(axes.begin(), axes.end(), time.axis) != axes.end()) return TimeReader{{}, {time}};
  }
  if (is_op(node, "embedding_gradient") && time.axis < node.inputs[1].spec().shape.rank())
    return TimeReader{{}, {time, time}};
  return {};
}

std::optional<TimeAxis> time_of_result(const GraphNode& node, size_t input, TimeAxis time, int64_t times) {
  const Shape &shape = node.inputs[input].spec().shape, &result = node.outputs[0].shape;
  if (is_elementwise(node)) return TimeAxis{time.axis + result.rank() - shape.rank(), time.each};
  if (is_op(node, "dropout") && input == 0) return time;
  if (is_op(node, "embedding") && input == 1) return time;
  if (is_op(node, "reshape")) return reshaped(shape, time, result, times);
  if (is_op(node, "matmul")) return TimeAxis{static_cast<int>(input), time.each};
  if (is_op(node, "permute")) {
    const Shape axes = node.attributes.ints("axes");
    return TimeAxis{static_cast<int>(std::find(axes.begin(), axes.end(), time.axis) - axes.begin()), time.each};
  }
  if (is_op(node, "sum")) {
    int axis = time.axis;
    for (int64_t one : node.attributes.ints("axes"))
      if (one < time.axis && !node.attributes.flag("keepdim")) --axis;
    return TimeAxis{axis, time.each};
  }
  return {};
}

}  // namespace

std::optional<TimeReader> reader_over_time(const GraphNode& node, size_t input, TimeAxis time, int64_t times) {
  if (node.is_input()) return {};
  if (std::optional<TimeReader> sum = sum_over_time(node, input, time)) return sum;
  const std::optional<TimeAxis> result = time_of_result(node, input, time, times);
  if (!result || node.outputs[0].shape[result->axis] != times * result->each) return {};
  const std::optional<TimeAxes> inputs = times_of_inputs(node, *result, times);
  if (!inputs || (*inputs)[input] != time) return {};
  return TimeReader{result, *inputs};
}

Shape shape_of_span(Shape whole, TimeAxis time, const TimeSpan& span) {
  whole[time.axis] = span.length() * time.each;
  return whole;
}

Attributes attributes_of_span(const GraphNode& node, TimeAxis result, const TimeSpan& span) {
  Attributes attributes = node.attributes;
  const Shape& whole = node.outputs[0].shape;
  if (is_op(node, "reshape")) attributes.set({"shape", shape_of_span(whole, result, span)});
  if (!is_op(node, "dropout")) return attributes;
  RandomSlice slice{.whole = whole, .offset = whole, .stride = whole};
  for (int i = 0; i < whole.rank(); ++i) {
    slice.offset[i] = 0;
    slice.stride[i] = 1;
  }
  if (attributes.has("whole"))
    slice = {
        .whole = attributes.ints("whole"), .offset = attributes.ints("offset"), .stride = attributes.ints("stride")};
  slice.offset[result.axis] += span.begin * result.each * slice.stride[result.axis];
  set_slice(attributes, slice);
  return attributes;
}

}  // namespace bonfire::passes
