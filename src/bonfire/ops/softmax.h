#pragma once
// Softmax and its logarithm along one axis (it may count from the end). Differentiable once.
//
// Ops (all AmpRule::full; attribute axis, counted from the front; result like the first input):
//   softmax(x), log_softmax(x)
//   softmax_gradient(dy, y) → dx = y (dy − Σ dy y)
//   log_softmax_gradient(dy, y) → dx = dy − exp(y) Σ dy

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor softmax(const Tensor& x, int64_t axis);      // exp(x) / Σ exp(x)
Tensor log_softmax(const Tensor& x, int64_t axis);  // x − log Σ exp(x)

}  // namespace bonfire
