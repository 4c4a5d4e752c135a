#pragma once
// Slices of random tensors. Element i of a random tensor draws number i of its op's stream (base/random.h); an element
// of a slice draws the number that it has in the whole tensor. So whoever draws a slice, on whichever rank and device,
// gets the values of the whole there.
//
//   uniform_random({2, 8}, DType::f32, {}, {.whole = {4, 8}, .offset = {2, 0}, .stride = {1, 1}})  // the last two rows
//
// Beside that there are the rows of data-parallel ranks, which a submission is told (RandomState in
// graph/step_context.h): row i of what a rank calls the whole is row i · world + rank of the batch of all ranks. Ops
// whose inputs are a batch go by both.

#include "bonfire/tensor/shape.h"

namespace bonfire {

// Index i along dimension d of the slice is offset[d] + i · stride[d] of the whole. Without dimensions: the whole
// itself.
struct RandomSlice {
  Shape whole = {}, offset = {}, stride = {};
};

}  // namespace bonfire
