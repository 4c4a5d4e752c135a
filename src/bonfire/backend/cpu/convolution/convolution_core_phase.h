#pragma once
// The gradient of a strided convolution by its input, as convolutions of stride 1. Private to backend/cpu.

#include <cstdint>
#include <numeric>

namespace bonfire::cpu {

// dx at y sees dy at (y + padding - r * dilation) / stride, for those r that divide evenly. Rows y of the same
// remainder modulo the stride (a phase) share these r; so each phase is a convolution of stride 1 over dy.
struct ConvolutionPhase {
  int64_t remainder, extent;          // y = remainder + stride * i, i < extent
  int64_t taps, first_tap, tap_step;  // r = first_tap + tap_step * j, j < taps
  int64_t first, step;                // dy at i + first + step * j

  ConvolutionPhase(int64_t remainder, int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
      : remainder(remainder), extent((in - remainder + stride - 1) / stride) {
    tap_step = stride / std::gcd(stride, dilation);
    first_tap = 0;
    while (first_tap < tap_step && (remainder + padding - first_tap * dilation) % stride != 0) ++first_tap;
    taps = first_tap < tap_step && first_tap < kernel ? (kernel - first_tap - 1) / tap_step + 1 : 0;
    first = taps > 0 ? (remainder + padding - first_tap * dilation) / stride : 0;
    step = -tap_step * dilation / stride;
  }
};

}  // namespace bonfire::cpu
