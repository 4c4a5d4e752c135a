#pragma once
// Values that ranks along an axis share out in equal parts of their row-major elements: collectives between the whole
// and the parts. A part is as long on all ranks, in whole groups of 64 bytes of f32, but for the last, which have what
// is left, or nothing.
//
//   Tensor part = comm::scatter_flat(gradient, Axis::data, comm::Reduce::mean);   // this rank's part of the mean
//   Tensor whole = comm::gather_flat(part, gradient.shape(), Axis::data);
//
// Nodes have any number of operands of one dtype, so that a pass can merge them (passes/bucket_all_reduce.h).

#include "bonfire/comm/collectives.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/slice.h"

namespace bonfire::comm {

Slice flat_part(const Shape& whole, int64_t place, int64_t parts);

// The mean, or another reduction, of all ranks' values: of each this rank's part.
// Attributes: axis, ranks, place, reduce, communicator, names [operands], as all_reduce has them.
const Op& scatter_flat_op();
Tensor scatter_flat(const Tensor& whole, Axis axis, Reduce reduce, int64_t name = -1);

// The gradient is the mean of all ranks': of each its part.
// Attributes: axis, ranks, place, communicator, names, shapes (of each operand the rank and the extents), parameter
// (0 or 1: its operands are parameters, which each phase of a step gathers for itself; passes/gather_parameters.h).
const Op& gather_flat_op();
Tensor gather_flat(const Tensor& part, const Shape& shape, Axis axis, int64_t name = -1, bool is_parameter = false);

}  // namespace bonfire::comm
