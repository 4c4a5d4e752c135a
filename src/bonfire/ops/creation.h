#pragma once
// Tensors from nothing. zeros, ones and arange are constants of a plan; full's number may vary from step to step.

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor constant(int64_t value, const TensorSpec& spec);  // every element the same whole number
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);

}  // namespace bonfire
