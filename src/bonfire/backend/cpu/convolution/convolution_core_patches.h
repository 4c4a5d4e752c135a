#pragma once
// Image patches as an operand of a product. Private to backend/cpu.

#include <cstdint>
#include <memory>

#include "bonfire/backend/cpu/gemm/gemm_driver.h"

namespace bonfire::cpu {

// Which numbers of an image a grid of pixels sees. Pixel (n, row, col) with tap (r, s) sees, in every channel,
//   image n, y = row * step_y + first_y + r * tap_step_y, x = col * step_x + first_x + s * tap_step_x,
// and zero where that lies outside. Forward convolution: step is the stride, first is -padding, tap_step the dilation.
struct PatchGrid {
  // The image: [batch, channels, height, width]; channels-last has stride_c == 1. Strides in elements.
  int64_t batch, channels, height, width;
  int64_t stride_n, stride_c, stride_y, stride_x;
  int64_t rows, cols;  // pixels per image
  int64_t step_y, step_x;
  int64_t taps_y, taps_x;
  int64_t first_y, first_x;
  int64_t tap_step_y, tap_step_x;
  bool channels_last;

  int64_t pixels() const { return batch * rows * cols; }
  int64_t patch_size() const { return channels * taps_y * taps_x; }
};

// The matrix of patches: pixels by patch elements, which are ordered (channel, r, s), or (r, s, channel) for
// channels-last. Pixels are the lanes of the operand, or, for gradients by the weight, its K.
template <class Element, class Acc>
std::unique_ptr<PanelSource<Acc>> patch_source(const PatchGrid& grid, const Element* image, bool pixels_are_lanes);

}  // namespace bonfire::cpu
