#pragma once
// Ops that rearrange elements without computing.

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor reshape(const Tensor& x, const Shape& shape);  // one extent may be -1: what remains
Tensor broadcast_to(const Tensor& x, const Shape& shape);
Tensor copy_to(const Tensor& x, Device device);  // Tensor::to(Device)

}  // namespace bonfire
