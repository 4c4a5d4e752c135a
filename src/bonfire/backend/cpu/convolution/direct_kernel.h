#pragma once
// The innermost loops of direct convolutions of channels-last f32 images, one table of functions per instruction set:
// kernels over very few input channels, and depthwise ones. Private to backend/cpu.
//
// They read rows of an image that lie in memory with their zero padding. Tap t of pixel p is x[p * step + offset[t]].

#include <cstdint>

#include "bonfire/backend/cpu/simd/vector_tables.h"

namespace bonfire::cpu {

struct DirectTaps {
  int count;
  const int64_t* offset;  // [count]
  int64_t step;           // between pixels
};

// What becomes of sums: out = activation(sums + bias + residual). Pixels are pixel_stride apart in out and residual.
struct DirectResult {
  float* out;
  int64_t pixel_stride;
  const float* bias;      // [channels rounded up to whole vectors] or null
  const float* residual;  // or null
  bool relu;
};

// Several rows of pixels, and the gradients of what they contributed to.
struct DirectRows {
  int64_t rows, pixels;
  const float* x;
  int64_t x_row_stride;
  const float* dy;
  int64_t dy_row_stride, dy_pixel_stride;
};

struct DirectKernel {
  int lanes;   // of a vector
  int panel;   // output channels that are summed together
  int pixels;  // most of them that are summed together
  int taps;    // most taps of a gradient that are summed together

  // out(p, j) from the sum over t of tap t of pixel p, one number, times weight[t * panel + j], for j < cols <= panel.
  void (*dense)(int pixels, int cols, const DirectTaps& taps, const float* x, const float* weight,
                const DirectResult& result);
  // sums[t * panel + j] += the sum over pixels of tap t times dy(p, j), for j < cols rounded up to whole vectors. dy
  // may be read up to there.
  void (*dense_gradient)(int cols, const DirectTaps& taps, const DirectRows& rows, float* sums);
  // The same channel by channel, with taps that are vectors: weight [taps, channels rounded up to whole vectors].
  void (*depthwise)(int64_t pixels, int64_t channels, const DirectTaps& taps, const float* x, const float* weight,
                    const DirectResult& result);
  void (*depthwise_gradient)(int64_t channels, const DirectTaps& taps, const DirectRows& rows, float* sums);
};

template <>
DirectKernel make_table<DirectKernel, VectorFamily::generic>();
template <>
DirectKernel make_table<DirectKernel, VectorFamily::neon>();
template <>
DirectKernel make_table<DirectKernel, VectorFamily::avx2>();
template <>
DirectKernel make_table<DirectKernel, VectorFamily::avx512>();

}  // namespace bonfire::cpu
