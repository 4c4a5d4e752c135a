#pragma once
// Random tensors: element i is number i of the stream that (seed, step, number of the op within the step) name; see
// base/random.h. manual_seed() begins again.
//
// Ops (Trait::random): uniform_random(key i64 [4]), normal_random(key): element i is uniform_at or normal_at(seed,
// random_stream(step, number), place of i), where key holds seed and step first, and the place is i, or that in the
// whole of which a slice is drawn (ops/random_slice.h). Every rank draws the same. Attributes: shape, dtype, number
// (of the op within the step); those of a slice.

#include "bonfire/graph/tensor.h"
#include "bonfire/ops/random_slice.h"

namespace bonfire {

// In [0, 1).
Tensor uniform_random(const Shape& shape, DType dtype = DType::f32, Device device = {}, const RandomSlice& slice = {});
// Of mean 0 and deviation 1.
Tensor normal_random(const Shape& shape, DType dtype = DType::f32, Device device = {}, const RandomSlice& slice = {});

}  // namespace bonfire
