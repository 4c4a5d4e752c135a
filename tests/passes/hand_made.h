#pragma once
// Hand-made graphs for the tests of passes.

#include <algorithm>
#include <string_view>

#include "bonfire/graph/graph.h"

namespace bonfire::passes {

inline GraphValue feed(Graph& graph, const Shape& shape, DType dtype = DType::f32, Device device = {}) {
  return {graph.add_input(LeafKind::feed, {shape, dtype, device}), 0};
}

// Of a GPU, which need not be there: nothing runs.
inline constexpr Device kGpu{DeviceType::cuda, 0};

inline GraphValue variable(Graph& graph, const Shape& shape) {
  return {graph.add_input(LeafKind::variable, {shape, DType::f32, {}}), 0};
}

inline GraphValue apply(Graph& graph, std::string_view op, std::vector<GraphValue> inputs, Attributes attributes = {}) {
  return {graph.add(find_op(op), std::move(inputs), std::move(attributes)), 0};
}

inline GraphValue constant(Graph& graph, int64_t value, const Shape& shape) {
  return apply(graph, "constant", {},
               {{"shape", shape}, {"value", value}, {"dtype", DType::f32}, {"device_type", 0}, {"device_index", 0}});
}

inline int count(const Graph& graph, std::string_view op) {
  return static_cast<int>(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                                        [&](const GraphNode& node) { return node.name() == op; }));
}

inline Attributes convolution() {
  return {{"stride", Shape{1, 1}}, {"padding", Shape{1, 1}}, {"dilation", Shape{1, 1}}, {"groups", 1}};
}

}  // namespace bonfire::passes
