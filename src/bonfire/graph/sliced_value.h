#pragma once
// What a step sees of a variable of which this rank has a slice. Users, shape rules and gradient rules see the whole: a
// placeholder stands where the memory, which has the slice, becomes the whole value, and another where a whole value
// becomes the slice again. A pass that knows how the step is shared out (shard) puts local computation and collectives
// in their place; a step in which one is left cannot run.

#include <span>

#include "bonfire/graph/graph.h"
#include "bonfire/graph/slice.h"
#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor whole_of_slice(const Tensor& stored, const Slice& slice);
Tensor slice_of_whole(const Tensor& whole, const Slice& slice);

// GraphError that names a variable whose whole value is asked for, and who asks.
void require_no_placeholders(const Graph& graph);

}  // namespace bonfire
