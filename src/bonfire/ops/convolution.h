#pragma once
// Two-dimensional convolution.
//
// Ops (all AmpRule::low). Shared attributes: stride, padding, dilation (lists {h, w}), groups (integer). Below
// x is [N, C, H, W], weight [O, C / groups, KH, KW], dy and y [N, O, OH, OW] with
// OH = (H + 2 padding − dilation (KH − 1) − 1) / stride + 1. All have one floating type.
//   conv2d(x, weight) → y
//   conv2d_input_gradient(dy, weight) → dx                 further attribute: input_size {H, W}
//   conv2d_weight_gradient(dy, x) → dweight                further attribute: kernel_size {KH, KW}
//     These three are each other's gradients, so convolution is differentiable any number of times.
//   conv2d_bias_act(x, weight[, bias][, residual]) → activation(conv2d(x, weight) + bias + residual)
//     further attributes: has_bias, has_residual (0 or 1), activation (-1, or the ElementwiseFunction relu, gelu,
//     gelu_tanh, tanh, sigmoid or silu). bias has O elements, as [O], [O, 1, 1] or [1, O, 1, 1], and x's type, or
//     f32 beside bf16 and f16; residual has y's shape and type. Made by fusion only: it has no gradient.

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct Conv2dOptions {
  Shape stride = {1, 1};  // {h, w}; one number stands for both, here and below
  Shape padding = {0, 0};
  Shape dilation = {1, 1};
  int64_t groups = 1;
};

// x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O] or undefined.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {});

}  // namespace bonfire
