#pragma once
// Dropout. Which elements are dropped is a pure function of the seed, the step, the number of the op within the step
// and the element's row-major index in the batch of all ranks, so it does not depend on threads or ranks, and the
// backward pass draws the same mask again instead of keeping it.
//
// Op (Trait::random): dropout(x, key i64 [4]) → y like x; also its own gradient, applied to dy.
//   attributes: p (number), number (of the op within the step); those of a slice (ops/random_slice.h)
//   key holds seed, step, rank and world. Row i of x is row i · world + rank of the batch of all ranks
//   (graph/step_context.h). With u = uniform_at(seed, random_stream(step, number), index) an element is kept, and
//   multiplied by 1 / (1 − p), where u ≥ float(p).

#include "bonfire/graph/tensor.h"
#include "bonfire/ops/random_slice.h"

namespace bonfire {

// Sets each element to 0 with probability p and multiplies the others by 1 / (1 − p). When not training: x.
// Where x is a slice, those are dropped that would be of the whole.
Tensor dropout(const Tensor& x, double p, bool training = true, const RandomSlice& slice = {});

}  // namespace bonfire
