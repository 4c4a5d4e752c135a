#pragma once
// How values lie along time, and how ops compute a span of it: what split_over_time cuts steps of LSTMs by.
//
//   x [T, N, I]                          time is axis 0
//   reshape(x, {T · N, I})               axis 0, N places for each time
//   matmul of that with [I, 4H]          likewise: a span of rows is a span of the product
//   matmul of its transpose with [T · N, 4H]   a sum over all times: spans give terms of it

#include <optional>
#include <vector>

#include "bonfire/graph/graph.h"

namespace bonfire::passes {

struct TimeAxis {
  int axis = 0;
  int64_t each = 1;  // places along the axis that belong to one time; those of a later time come after them

  friend bool operator==(const TimeAxis&, const TimeAxis&) = default;
};

struct TimeSpan {
  int64_t begin = 0, end = 0;  // times

  int64_t length() const { return end - begin; }
};

using TimeAxes = std::vector<std::optional<TimeAxis>>;  // of a node's inputs; none: every span reads all of it

// What a span of the node's result is computed from; nothing where that is not known of the op.
std::optional<TimeAxes> times_of_inputs(const GraphNode& node, TimeAxis result, int64_t times);

// What a node makes of an input along time; nothing where that is not known.
struct TimeReader {
  std::optional<TimeAxis> result;  // none: a sum over all times
  TimeAxes inputs;
};
std::optional<TimeReader> reader_over_time(const GraphNode& node, size_t input, TimeAxis time, int64_t times);

Shape shape_of_span(Shape whole, TimeAxis time, const TimeSpan& span);
// For a node like this one that computes a span.
Attributes attributes_of_span(const GraphNode& node, TimeAxis result, const TimeSpan& span);

}  // namespace bonfire::passes
