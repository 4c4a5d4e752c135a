#pragma once
// all_reduce as an op: collectives.h has the user's function, and what holds for all collectives.
//
// A node has any number of operands, of one dtype; each is replaced by its reduction over the ranks along the axis.
// Operands are reduced as they lie; only where the ranks' lie in different ways (their processors differ, or the sizes
// of their first batches did) are they brought into row-major order and back.

#include "bonfire/comm/collectives.h"
#include "bonfire/graph/graph.h"

namespace bonfire::comm {

// Attributes: axis, reduce, communicator, names [operands]. Those of gradients have names.
const Op& all_reduce_op();

// A node of one operand without a name.
Attributes all_reduce_attributes(Axis axis, Reduce reduce, int64_t name = -1);

// A value that has a name (ValueNames): ranks must reduce values of the same name. Whatever mixed precision does, it is
// reduced in the type that it has been traced with.
Tensor all_reduce_named(const Tensor& value, Axis axis, Reduce reduce, int64_t name);

}  // namespace bonfire::comm
