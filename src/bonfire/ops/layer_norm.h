#pragma once
// Layer normalisation over the last axes: y = (x − mean) / √(variance + eps) · weight + bias, with statistics in f32
// (f64 for f64) whatever the type of x.
//
// Ops (AmpRule::follow). S is f64 for f64, otherwise f32. weight and bias are S or of x's type, both the same.
//   layer_norm(x[, weight[, bias]]) → y (like x), mean S [rows…], reciprocal deviation S [rows…]
//   layer_norm_gradient(dy, x, mean, reciprocal deviation[, weight]) → dx[, dweight, dbias]
//     attributes of both: rank (trailing axes that are normalised together), eps (number)

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct LayerNormOptions {
  int rank = 1;  // how many trailing axes are normalised together
  double eps = 1e-5;
};

// weight and bias have the shape of the normalised axes. Either may be left out (an undefined tensor).
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, LayerNormOptions options = {});

}  // namespace bonfire
