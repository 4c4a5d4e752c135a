#pragma once
// The innermost loops of Winograd's convolution F(m x m, r x r) with r x r kernels: one table of functions per
// instruction set, tile size m and kernel size r. Private to backend/cpu.
//
// A tile of m x m results needs a patch of n x n pixels, n = m + r - 1. Winograd's algorithm (winograd_lines.h)
// transforms patches and weights to n x n numbers each, multiplies those one by one, and transforms the products to
// results. All transforms are linear, so the sums over channels are done on the products: n * n matrix products, one
// per `position`, of tiles by channels times channels by channels, with (m r / n)^2 times fewer multiplications.
//
// Transformed numbers of some tiles lie as
//   [tile / group][channel / width][position][tile % group][channel % width],
// with width = lanes for the left operand of products, whose numbers are broadcast, and width = panel for the right one
// and for products. Transformed weights lie in the same way, with input channels for tiles. So transforms store whole
// vectors to few pages of memory, and nothing needs to be packed.

#include <cstdint>

#include "bonfire/backend/cpu/simd/vector_tables.h"

namespace bonfire::cpu {

// How transformed numbers lie in memory, in elements.
struct WinogradPlaces {
  int64_t group;            // tiles
  int64_t width;            // channels
  int64_t position_stride;  // >= group * width
  int64_t block_stride;     // between blocks of `width` channels
  int64_t group_stride;

  WinogradPlaces(int positions, int64_t group, int64_t channels, int64_t width);
  int64_t size(int64_t tiles) const { return (tiles + group - 1) / group * group_stride; }
  int64_t offset(int64_t tile) const { return tile / group * group_stride + tile % group * width; }
};

// Square of pixels of an image, some of which may lie outside it. Pixel (i, j) is number corner + i * row_stride + j *
// pixel_stride; it lies inside for i in [top, bottom) and j in [left, right).
struct WinogradPixels {
  int64_t corner, row_stride, pixel_stride;
  int top, bottom, left, right;
  int64_t image_end;  // numbers of all images
};

// What becomes of the products of one tile: out = activation(results + bias + residual).
template <class Element>
struct WinogradResult {
  const float* products;  // of the tile: position p, channel j is products[p * position_stride + j]
  int64_t position_stride;
  int channels;  // <= panel
  WinogradPixels pixels;
  Element* out;
  const float* bias;        // [channels rounded up to whole vectors] or null
  const Element* residual;  // or null
  bool relu;
  uint32_t blank = 0;  // bit i * m + j: result (i, j) is zero before anything is added
};

struct WinogradTap {
  int tap, channel;
};

// Loops that read or write images and weights. Element is float, or uint16_t for the bits of bf16.
template <class Element>
struct WinogradMemory {
  // A patch of n x n pixels of `channels` numbers each.
  void (*transform_patch)(const Element* image, const WinogradPixels& pixels, int64_t channels, float* to,
                          const WinogradPlaces& places);
  // The gradient of a tile's m x m results.
  void (*transform_gradient)(const Element* image, const WinogradPixels& pixels, int64_t channels, float* to,
                             const WinogradPlaces& places);
  // Numbers [rows][columns], row_stride apart, to rows `to_stride` apart, filled up with zeros to whole vectors.
  void (*copy)(int rows, int columns, const Element* from, int64_t row_stride, float* to, int64_t to_stride);
  // The same to [columns][rows], not filled up.
  void (*transpose)(int rows, int columns, const Element* from, int64_t row_stride, float* to, int64_t to_stride);
  void (*finish)(const WinogradResult<Element>& result);
  // Sums over tiles of position p are sums[p * position_stride]; tap t goes to taps + t * tap_stride. Notes those that
  // are so small, `doubt` times the largest sum, that they may be noise in the place of zero, and returns how many.
  int (*finish_weights)(const float* sums, int64_t position_stride, int channels, Element* taps, int64_t tap_stride,
                        float doubt, WinogradTap* doubtful);
};

inline constexpr int kMaxWinogradLanes = 16;
inline constexpr int kMaxWinogradKernel = 5;
inline constexpr int kMaxWinogradPatch = 8;  // tile + kernel - 1

struct WinogradKernel {
  int tile;    // m
  int kernel;  // r
  int lanes;   // of a vector
  int panel;   // columns of a right operand that are multiplied together
  int rows;    // most rows of a product that are summed together

  int patch() const { return tile + kernel - 1; }  // n
  int positions() const { return patch() * patch(); }
  int taps() const { return kernel * kernel; }

  // Weights of one input channel and `lanes` output channels, to which taps [r * r] point. Position p goes to
  // to[p * position_stride].
  void (*transform_weights)(const float* const* taps, float* to, int64_t position_stride);

  // One position of a group of tiles: out[tile * panel + j] (+)= sum over k of left(tile, k) * right[k * panel + j],
  // for j < cols rounded up to whole vectors. left(tile, k) is left[k / lanes * left_stride + tile * lanes + k %
  // lanes]. Cutting K at multiples of 64 and adding gives the same bits.
  void (*multiply)(int tiles, int cols, int64_t k, const float* left, int64_t left_stride, const float* right,
                   float* out, bool add);
  // One position of all tiles: out[r * panel + j] (+)= sum over tiles of left(tile, r) * right(tile, j), for r < rows.
  void (*multiply_over_tiles)(int64_t rows, int cols, int64_t tiles, const float* left,
                              const WinogradPlaces& left_places, const float* right, const WinogradPlaces& right_places,
                              float* out, bool add);

  WinogradMemory<float> f32;
  WinogradMemory<uint16_t> bf16;

  template <class Element>
  const WinogradMemory<Element>& memory() const {
    if constexpr (sizeof(Element) == sizeof(float))
      return f32;
    else
      return bf16;
  }
};

struct WinogradKernels {
  WinogradKernel f2x3, f4x3, f2x5;  // F(2 x 2, 3 x 3), ...
};

template <>
WinogradKernels make_table<WinogradKernels, VectorFamily::generic>();
template <>
WinogradKernels make_table<WinogradKernels, VectorFamily::neon>();
template <>
WinogradKernels make_table<WinogradKernels, VectorFamily::avx2>();
template <>
WinogradKernels make_table<WinogradKernels, VectorFamily::avx512>();

// Of vector_table(); null where there is no such algorithm.
const WinogradKernel* winograd_kernel(int64_t tile, int64_t kernel);

}  // namespace bonfire::cpu
