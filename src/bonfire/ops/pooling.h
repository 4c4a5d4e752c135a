#pragma once
// Pooling over windows of images.
//
// Ops (AmpRule::follow). x and dx are [N, C, H, W], y and dy [N, C, OH, OW]; all of one op have one floating type.
// Window attributes: kernel, stride, padding (lists {h, w}), ceil_mode (0 or 1).
//   max_pool2d(x) → y                          attributes: window. NaN wins; of equal maxima the first in the window.
//   max_pool2d_gradient(dy, x, y) → dx         attributes: window. The whole of dy goes to the first x equal to y.
//   avg_pool2d(x) → y                          attributes: window, count_include_pad (0 or 1)
//   avg_pool2d_gradient(dy) → dx               attributes: those of avg_pool2d, input_size {H, W}
//   adaptive_avg_pool2d(x) → y                 attribute: output_size {OH, OW}. Window i is
//                                              [floor(i H / OH), ceil((i + 1) H / OH)), the same along W.
//   adaptive_avg_pool2d_gradient(dy) → dx      attribute: input_size {H, W}
// The average ops are linear, and differentiable any number of times; max_pool2d once.

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct MaxPool2dOptions {
  Shape kernel;       // {h, w}; one number stands for both, here and below
  Shape stride = {};  // empty: as the kernel
  Shape padding = {0};
  bool ceil_mode = false;  // a last window that reaches past the edge counts too
};
Tensor max_pool2d(const Tensor& x, const MaxPool2dOptions& options);

struct AvgPool2dOptions {
  Shape kernel;
  Shape stride = {};
  Shape padding = {0};
  bool ceil_mode = false;
  bool count_include_pad = true;  // padding counts in the divisor, as zeros
};
Tensor avg_pool2d(const Tensor& x, const AvgPool2dOptions& options);

// Any output size {OH, OW}; windows are as equal as they can be.
Tensor adaptive_avg_pool2d(const Tensor& x, const Shape& output_size);

// Elements that a window of `kernel` makes along an axis of `extent`, as PyTorch counts them: with ceil_mode a last
// window may begin inside the input or its left padding, never in the right padding.
int64_t pooled_extent(int64_t extent, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode);

}  // namespace bonfire
