#pragma once
// Transforms of tiles, for winograd_kernel_template.h.

#include <limits>

#include "bonfire/backend/cpu/convolution/winograd_kernel.h"
#include "bonfire/backend/cpu/convolution/winograd_lines.h"
#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa, int Tile, int Kernel>
struct WinogradTransforms {
  using G = GemmVectors<Isa>;
  using Vector = typename G::Vector;
  using Quad = typename G::Quad;
  using Lines = WinogradLines<Tile, Kernel>;
  static constexpr int kLanes = G::kLanes;
  static constexpr int kPatch = Tile + Kernel - 1;

  template <class Element>
  [[gnu::always_inline]] static Vector load(const Element* from) {
    return G::template load<Vector>(from);
  }
  // The first `count` numbers of a vector.
  template <class Element>
  [[gnu::always_inline]] static Vector load(const Element* from, int count) {
    return count == kLanes ? load(from) : G::load_part(from, count);
  }
  template <class Element>
  [[gnu::always_inline]] static void store(Element* to, int count, const Vector& value) {
    if (count == kLanes)
      G::store(to, value);
    else
      G::store_part(to, count, value);
  }

  // Applies a line to columns, then to rows: get(row, column) -> put(row, column, vector).
  template <class Line, class Get, class Put>
  [[gnu::always_inline]] static void transform(const Get& get, const Put& put) {
    constexpr int kIn = Line::kIn, kOut = Line::kOut;
    Vector half[kOut][kIn];
#pragma GCC unroll 8
    for (int j = 0; j < kIn; ++j) {
      Vector column[kIn], to[kOut];
#pragma GCC unroll 8
      for (int i = 0; i < kIn; ++i) column[i] = get(i, j);
      Line::apply(column, to);
#pragma GCC unroll 8
      for (int i = 0; i < kOut; ++i) half[i][j] = to[i];
    }
#pragma GCC unroll 8
    for (int i = 0; i < kOut; ++i) {
      Vector to[kOut];
      Line::apply(half[i], to);
#pragma GCC unroll 8
      for (int j = 0; j < kOut; ++j) put(i, j, to[j]);
    }
  }

  // Pixels of an image -> transformed numbers, for all channels.
  template <class Line, class Element>
  static void spread(const Element* image, const WinogradPixels& pixels, int64_t channels, float* to,
                     const WinogradPlaces& places) {
    constexpr int kIn = Line::kIn;
    const WinogradPixels at = pixels;
    const Element* corner = image + at.corner;
    const bool inside = at.top == 0 && at.left == 0 && at.bottom == kIn && at.right == kIn;
    // The last pixel that lies inside: beyond its channels the image may end.
    const int64_t last = at.corner + (at.bottom - 1) * at.row_stride + (at.right - 1) * at.pixel_stride;
    int64_t in_block = 0;
    for (int64_t c = 0; c < channels; c += kLanes, corner += kLanes) {
      // A vector may hold numbers of the next pixel: nobody looks at what becomes of them.
      const bool whole = c + kLanes <= channels || last + c + kLanes <= at.image_end;
      if (inside && whole) {
        spread_vector<Line>(corner, at.row_stride, at.pixel_stride, to + in_block, places.position_stride);
      } else {
        alignas(64) float square[kIn * kIn * kLanes];
        copy_inside<kIn>(at, corner, whole ? kLanes : static_cast<int>(channels - c), square);
        spread_vector<Line>(square, kIn * kLanes, kLanes, to + in_block, places.position_stride);
      }
      in_block += kLanes;
      if (in_block == places.width) in_block = 0, to += places.block_stride;
    }
  }

  // `count` channels of a square of pixels, zero for pixels outside the image.
  template <int Side, class Element>
  [[gnu::always_inline]] static void copy_inside(const WinogradPixels& at, const Element* corner, int count,
                                                 float* to) {
    for (int i = 0; i < Side * Side; ++i) G::store(to + i * kLanes, Vector{});
    for (int i = at.top; i < at.bottom; ++i)
      for (int j = at.left; j < at.right; ++j)
        G::store(to + (i * Side + j) * kLanes, load(corner + i * at.row_stride + j * at.pixel_stride, count));
  }

  template <class Line, class Element>
  [[gnu::always_inline]] static void spread_vector(const Element* corner, int64_t row_stride, int64_t pixel_stride,
                                                   float* to, int64_t position_stride) {
    transform<Line>(
        [&](int i, int j) { return load(corner + i * row_stride + j * pixel_stride); },
        [&](int i, int j, const Vector& value) { G::store(to + (i * Line::kOut + j) * position_stride, value); });
  }

  static void transform_weights(const float* const* taps, float* to, int64_t position_stride) {
    transform<typename Lines::Weight>(
        [&](int i, int j) { return load(taps[i * Kernel + j]); },
        [&](int i, int j, const Vector& value) { G::store(to + (i * kPatch + j) * position_stride, value); });
  }

  template <class Element>
  static void copy(int rows, int columns, const Element* from, int64_t row_stride, float* to, int64_t to_stride) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; c += kLanes)
        G::store(to + r * to_stride + c, load(from + r * row_stride + c, columns - c < kLanes ? columns - c : kLanes));
  }

  template <class Element>
  static void transpose(int rows, int columns, const Element* from, int64_t row_stride, float* to, int64_t to_stride) {
    for (int r = 0; r < rows; ++r) __builtin_prefetch(from + r * row_stride + columns);  // often what comes next
    for (int r = 0; r < rows; r += 4)
      for (int c = 0; c < columns; c += 4) {
        const Element* corner = from + r * row_stride + c;
        float* target = to + c * to_stride + r;
        if (r + 4 <= rows && c + 4 <= columns) {
          transpose_quads(corner, row_stride, target, to_stride);
        } else {
          for (int i = r; i < rows && i < r + 4; ++i)
            for (int j = c; j < columns && j < c + 4; ++j) to[j * to_stride + i] = G::widen(from[i * row_stride + j]);
        }
      }
  }

  template <class Element>
  [[gnu::always_inline]] static void transpose_quads(const Element* from, int64_t row_stride, float* to,
                                                     int64_t to_stride) {
    Quad r0 = G::template load<Quad>(from), r1 = G::template load<Quad>(from + row_stride);
    Quad r2 = G::template load<Quad>(from + 2 * row_stride), r3 = G::template load<Quad>(from + 3 * row_stride);
    Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    G::store(to, Quad(__builtin_shufflevector(low01, low23, 0, 1, 4, 5)));
    G::store(to + to_stride, Quad(__builtin_shufflevector(low01, low23, 2, 3, 6, 7)));
    G::store(to + 2 * to_stride, Quad(__builtin_shufflevector(high01, high23, 0, 1, 4, 5)));
    G::store(to + 3 * to_stride, Quad(__builtin_shufflevector(high01, high23, 2, 3, 6, 7)));
  }

  template <class Element>
  static void finish(const WinogradResult<Element>& result) {
    const WinogradResult<Element> r = result;
    const WinogradPixels& at = r.pixels;
    for (int c = 0; c < r.channels; c += kLanes) {
      const int count = r.channels - c < kLanes ? r.channels - c : kLanes;
      Vector bias{}, value[Tile][Tile];
      if (r.bias) bias = load(r.bias + c);
      transform<typename Lines::Result>(
          [&](int i, int j) { return load(r.products + c + (i * kPatch + j) * r.position_stride); },
          [&](int i, int j, const Vector& sum) { value[i][j] = sum; });
      if (r.blank != 0)
        for (int i = 0; i < Tile * Tile; ++i)
          if ((r.blank >> i & 1) != 0) value[i / Tile][i % Tile] = Vector{};
      for (int i = 0; i < at.bottom; ++i)
        for (int j = 0; j < at.right; ++j)
          finish_pixel(r, at.corner + i * at.row_stride + j * at.pixel_stride + c, count, value[i][j] + bias);
    }
  }

  template <class Element>
  [[gnu::always_inline]] static void finish_pixel(const WinogradResult<Element>& r, int64_t at, int count,
                                                  Vector value) {
    if (r.residual) value += load(r.residual + at, count);
    if (r.relu) value = value < 0.0F ? Vector{} : value;  // NaN passes through
    store(r.out + at, count, value);
  }

  [[gnu::always_inline]] static Vector magnitude(const Vector& value) { return value < 0.0F ? -value : value; }

  template <class Element>
  static int finish_weights(const float* sums, int64_t position_stride, int channels, Element* taps, int64_t tap_stride,
                            float doubt, WinogradTap* doubtful) {
    int noted = 0;
    for (int c = 0; c < channels; c += kLanes) {
      const int count = channels - c < kLanes ? channels - c : kLanes;
      Vector largest{}, least = Vector{} + std::numeric_limits<float>::infinity();
      Vector gradient[Kernel * Kernel];
      transform<typename Lines::WeightGradient>(
          [&](int i, int j) {
            const Vector sum = load(sums + c + (i * kPatch + j) * position_stride), size = magnitude(sum);
            largest = size > largest ? size : largest;
            return sum;
          },
          [&](int i, int j, const Vector& value) {
            const Vector size = magnitude(value);
            least = size < least ? size : least;
            gradient[i * Kernel + j] = value;
            store(taps + (i * Kernel + j) * tap_stride + c, count, value);
          });
      for (int lane = 0; lane < count; ++lane) {
        const float bound = doubt * largest[lane];
        if (least[lane] >= bound) continue;
        for (int tap = 0; tap < Kernel * Kernel; ++tap)
          if (const float size = __builtin_fabsf(gradient[tap][lane]); size > 0 && size < bound)
            doubtful[noted++] = {tap, c + lane};
      }
    }
    return noted;
  }
};

}  // namespace bonfire::cpu
