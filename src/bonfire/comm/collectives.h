#pragma once
// Collectives as ops: nodes like any other, which passes see, merge and move, with shape rules and gradients.
//
//   Tensor whole = comm::all_gather(part, Axis::tensor, 1);      // columns of all ranks, side by side
//   Tensor total = comm::all_reduce(partial, Axis::tensor);      // sum over them
//
// They name an axis of the job's mesh (graph/mesh.h): the ranks that differ from this one along it alone, numbered by
// their place. All of these must trace the same collectives in the same order; comm/agreement.h finds out when they do
// not. Along an axis of one rank nothing is done. Values may lie in memory in any way; ranks may differ in it.
//
// Gradients are those of the sum of all ranks' losses: each rank calls backward() on its own, and all must go back
// through the same collectives.

#include "bonfire/comm/group.h"
#include "bonfire/graph/mesh.h"
#include "bonfire/graph/tensor.h"

namespace bonfire::comm {

// Every rank gets the reduction of all values, which have one shape.
Tensor all_reduce(const Tensor& value, Axis axis, Reduce reduce = Reduce::sum);
// The values of all ranks, of one shape, side by side along a dimension: rank i's are the i-th part.
Tensor all_gather(const Tensor& value, Axis axis, int dim = 0);
// Rank i gets the i-th part, along a dimension, of the reduction of all values. ShapeError where it cannot be shared
// out evenly.
Tensor reduce_scatter(const Tensor& value, Axis axis, int dim = 0, Reduce reduce = Reduce::sum);
// Every rank gets the value of the rank at place `root`; the others' only say the shape.
Tensor broadcast(const Tensor& value, Axis axis, int root = 0);
// Part i of the value, along dimension `split`, goes to rank i; what comes from the ranks stands side by side along
// dimension `join`.
Tensor all_to_all(const Tensor& value, Axis axis, int split = 0, int join = 0);

// Messages between two ranks along the axis, which only these two trace. What is sent is copied, and the step goes on:
// it may end before the message is received. Those from one rank to another arrive in the order in which they were
// traced. Each carries shape, dtype and tag, and what the receiver does not expect is a CommError there that names
// both.
//
// send() returns 0, as a number [] that stands for the message: added to a loss, it makes the backward pass receive the
// gradient from the rank that the value went to. There receive() with `requires_grad` makes it be sent.
Tensor send(const Tensor& value, Axis axis, int to, int64_t tag = 0);
struct ReceiveOptions {
  int64_t tag = 0;
  bool requires_grad = false;
};
Tensor receive(const TensorSpec& spec, Axis axis, int from, ReceiveOptions options = {});

}  // namespace bonfire::comm
