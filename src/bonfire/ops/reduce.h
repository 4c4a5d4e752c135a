#pragma once
// Reductions. Axes may count from the end; no axes means all of them.

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct ReduceOptions {
  bool keepdim = false;
};

Tensor sum(const Tensor& x, const Shape& axes = {}, ReduceOptions options = {});

// Undoes broadcasting: sums `x` to the shape of `target` and casts it to its type. What gradients of broadcasting ops
// need.
Tensor sum_to(const Tensor& x, const TensorSpec& target);

}  // namespace bonfire
