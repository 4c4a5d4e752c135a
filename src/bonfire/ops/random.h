#pragma once
// Random tensors: element i is number i of the stream that (seed, step, number of the op within the step) name; see
// base/random.h. manual_seed() begins again.
//
// Ops (Trait::random): uniform_random(key i64 [4]), normal_random(key): element i is uniform_at or normal_at(seed,
// random_stream(step, number), i), where key holds seed and step first. Attributes: shape, dtype, number (of the op
// within the step).

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor uniform_random(const Shape& shape, DType dtype = DType::f32, Device device = {});  // in [0, 1)
Tensor normal_random(const Shape& shape, DType dtype = DType::f32, Device device = {});   // mean 0, deviation 1

}  // namespace bonfire
