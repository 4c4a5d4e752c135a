#pragma once
// Reductions. Axes may count from the end; no axes means all of them. Low-precision floats are added up in f32.

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct ReduceOptions {
  bool keepdim = false;  // leave reduced axes in place with extent 1
};

Tensor sum(const Tensor& x, const Shape& axes = {}, ReduceOptions options = {});   // integers and bool give i64
Tensor mean(const Tensor& x, const Shape& axes = {}, ReduceOptions options = {});  // of floats only

// NaN wins. The gradient goes to the winners; ties share it.
Tensor max(const Tensor& x, const Shape& axes = {}, ReduceOptions options = {});
Tensor min(const Tensor& x, const Shape& axes = {}, ReduceOptions options = {});

// Where the first of the largest (smallest) elements along an axis stands: i64. NaN wins.
Tensor argmax(const Tensor& x, int64_t axis, ReduceOptions options = {});
Tensor argmin(const Tensor& x, int64_t axis, ReduceOptions options = {});

// The k largest elements along an axis, largest first, and where they stood (i64). Of equal ones the earlier comes
// first; NaN counts as largest.
struct TopK {
  Tensor values, indices;
};
TopK top_k(const Tensor& x, int64_t k, int64_t axis = -1);

// Undoes broadcasting: sums `x` to the shape of `target` and casts it to its type. What gradients of broadcasting ops
// need.
Tensor sum_to(const Tensor& x, const TensorSpec& target);

}  // namespace bonfire
