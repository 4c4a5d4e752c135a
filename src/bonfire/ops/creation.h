#pragma once
// Tensors from nothing. zeros, ones and arange are constants of a plan; full's number may vary from step to step.

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor constant(int64_t value, const TensorSpec& spec);  // every element the same whole number
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);

// Every element `value`, which is read at each submission: a plain number or a Scalar.
Tensor full(const Shape& shape, const Scalar& value, DType dtype = DType::f32, Device device = {});

// begin, begin + step, … up to but without `end`; rank 1.
struct ArangeOptions {
  int64_t step = 1;
  DType dtype = DType::i64;
  Device device = {};
};
Tensor arange(int64_t begin, int64_t end, ArangeOptions options = {});

}  // namespace bonfire
