#pragma once
// The innermost loops of direct_kernel.h, written once over a vector type and compiled once per instruction set, under
// the rules of gemm_kernel_template.h.
//
// Isa names: Scalar (float), bytes (of a vector), mr (pixels or taps of a tile), vectors (of a panel).

#include "bonfire/backend/cpu/convolution/direct_kernel.h"
#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa>
struct DirectTemplate {
  using G = GemmVectors<Isa>;
  using Vector = typename G::Vector;
  static constexpr int kLanes = G::kLanes;
  static constexpr int kRows = Isa::mr;
  static constexpr int kVectors = Isa::vectors;
  static constexpr int kPanel = kVectors * kLanes;
  static constexpr int kTaps = 8;  // of a channel, whose gradients are summed together

  [[gnu::always_inline]] static Vector load(const float* from) { return G::template load<Vector>(from); }

  // One vector of results, the first `count` of whose channels exist.
  [[gnu::always_inline]] static void finish(const DirectResult& r, int64_t at, int count, Vector value,
                                            const Vector& bias) {
    value += bias;
    const bool whole = count >= kLanes;
    if (r.residual) value += whole ? load(r.residual + at) : G::load_part(r.residual + at, count);
    if (r.relu) value = value < 0.0F ? Vector{} : value;  // NaN passes through
    if (whole)
      G::store(r.out + at, value);
    else
      G::store_part(r.out + at, count, value);
  }

  struct Dense {
    int cols;
    const DirectTaps& taps;
    const float* x;
    const float* weight;
    const DirectResult& result;

    template <int Rows, int Vectors>
    void run() const {
      Vector sum[Rows][Vectors] = {};
      const int64_t step = taps.step;
      const float* columns = weight;
      for (int t = 0; t < taps.count; ++t, columns += kPanel) {
        const float* pixel = x + taps.offset[t];
        Vector right[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) right[v] = load(columns + v * kLanes);
#pragma GCC unroll 32
        for (int p = 0; p < Rows; ++p)
#pragma GCC unroll 8
          for (int v = 0; v < Vectors; ++v) sum[p][v] += right[v] * pixel[p * step];
      }
      const DirectResult to = result;
      for (int v = 0; v < Vectors; ++v) {
        const Vector bias = to.bias ? load(to.bias + v * kLanes) : Vector{};
#pragma GCC unroll 32
        for (int p = 0; p < Rows; ++p) finish(to, p * to.pixel_stride + v * kLanes, cols - v * kLanes, sum[p][v], bias);
      }
    }
  };

  struct DenseGradient {
    const int64_t* offset;
    int64_t step;
    const DirectRows& rows;
    float* sums;

    template <int Taps, int Vectors>
    void run() const {
      Vector sum[Taps][Vectors] = {};
      for (int64_t row = 0; row < rows.rows; ++row) {
        const float* pixel = rows.x + row * rows.x_row_stride;
        const float* gradient = rows.dy + row * rows.dy_row_stride;
        for (int64_t p = 0; p < rows.pixels; ++p, pixel += step, gradient += rows.dy_pixel_stride) {
          Vector right[Vectors];
#pragma GCC unroll 8
          for (int v = 0; v < Vectors; ++v) right[v] = load(gradient + v * kLanes);
#pragma GCC unroll 32
          for (int t = 0; t < Taps; ++t)
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sum[t][v] += right[v] * pixel[offset[t]];
        }
      }
#pragma GCC unroll 32
      for (int t = 0; t < Taps; ++t)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
          float* to = sums + t * kPanel + v * kLanes;
          G::store(to, Vector(load(to) + sum[t][v]));
        }
    }
  };

  template <int Vectors, int Rows, class Job>
  static void run_rows(int rows, const Job& job) {
    if (rows == Rows) {
      job.template run<Rows, Vectors>();
    } else if constexpr (Rows > 1) {
      run_rows<Vectors, Rows - 1>(rows, job);
    }
  }

  // With the number of rows and of vectors as constants.
  template <int Vectors = kVectors, class Job>
  static void run(int rows, int cols, const Job& job) {
    if (cols > (Vectors - 1) * kLanes) {
      run_rows<Vectors, kRows>(rows, job);
    } else if constexpr (Vectors > 1) {
      run<Vectors - 1>(rows, cols, job);
    }
  }

  static void dense(int pixels, int cols, const DirectTaps& taps, const float* x, const float* weight,
                    const DirectResult& result) {
    run(pixels, cols, Dense{cols, taps, x, weight, result});
  }

  static void dense_gradient(int cols, const DirectTaps& taps, const DirectRows& rows, float* sums) {
    for (int t = 0; t < taps.count; t += kRows)
      run(taps.count - t < kRows ? taps.count - t : kRows, cols,
          DenseGradient{taps.offset + t, taps.step, rows, sums + t * kPanel});
  }

  // `Pixels` pixels of one vector of channels.
  template <int Pixels>
  static void depthwise_pixels(const DirectTaps& taps, const float* x, const float* weight, int64_t weight_stride,
                               const DirectResult& r, int64_t at, int count, const Vector& bias) {
    Vector sum[Pixels] = {};
    const int64_t step = taps.step;
    for (int t = 0; t < taps.count; ++t, weight += weight_stride) {
      const Vector factor = load(weight);
      const float* pixel = x + taps.offset[t];
#pragma GCC unroll 8
      for (int p = 0; p < Pixels; ++p) sum[p] += factor * load(pixel + p * step);
    }
#pragma GCC unroll 8
    for (int p = 0; p < Pixels; ++p) finish(r, at + p * r.pixel_stride, count, sum[p], bias);
  }

  static void depthwise(int64_t pixels, int64_t channels, const DirectTaps& taps, const float* x, const float* weight,
                        const DirectResult& result) {
    const DirectResult r = result;
    const int64_t weight_stride = (channels + kLanes - 1) / kLanes * kLanes;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int count = static_cast<int>(channels - c < kLanes ? channels - c : kLanes);
      const Vector bias = r.bias ? load(r.bias + c) : Vector{};
      auto run = [&]<int Pixels>(int64_t p) {
        depthwise_pixels<Pixels>(taps, x + p * taps.step + c, weight + c, weight_stride, r, p * r.pixel_stride + c,
                                 count, bias);
      };
      int64_t p = 0;
      for (; p + 8 <= pixels; p += 8) run.template operator()<8>(p);
      for (; p + 4 <= pixels; p += 4) run.template operator()<4>(p);
      for (; p < pixels; ++p) run.template operator()<1>(p);
    }
  }

  template <int Taps>
  static void depthwise_taps(const int64_t* offset, int64_t step, const DirectRows& rows, int64_t c, float* sums,
                             int64_t sum_stride) {
    Vector sum[Taps] = {};
    for (int64_t row = 0; row < rows.rows; ++row) {
      const float* pixel = rows.x + row * rows.x_row_stride + c;
      const float* gradient = rows.dy + row * rows.dy_row_stride + c;
      for (int64_t p = 0; p < rows.pixels; ++p, pixel += step, gradient += rows.dy_pixel_stride) {
        const Vector factor = load(gradient);
#pragma GCC unroll 8
        for (int t = 0; t < Taps; ++t) sum[t] += factor * load(pixel + offset[t]);
      }
    }
    for (int t = 0; t < Taps; ++t) G::store(sums + t * sum_stride, Vector(load(sums + t * sum_stride) + sum[t]));
  }

  static void depthwise_gradient(int64_t channels, const DirectTaps& taps, const DirectRows& rows, float* sums) {
    const int64_t sum_stride = (channels + kLanes - 1) / kLanes * kLanes;
    for (int64_t c = 0; c < channels; c += kLanes) {
      int t = 0;
      for (; t + kTaps <= taps.count; t += kTaps)
        depthwise_taps<kTaps>(taps.offset + t, taps.step, rows, c, sums + t * sum_stride + c, sum_stride);
      for (; t + 3 <= taps.count; t += 3)
        depthwise_taps<3>(taps.offset + t, taps.step, rows, c, sums + t * sum_stride + c, sum_stride);
      for (; t < taps.count; ++t)
        depthwise_taps<1>(taps.offset + t, taps.step, rows, c, sums + t * sum_stride + c, sum_stride);
    }
  }

  static DirectKernel kernel() {
    return {.lanes = kLanes,
            .panel = kPanel,
            .pixels = kRows,
            .taps = kRows,
            .dense = &dense,
            .dense_gradient = &dense_gradient,
            .depthwise = &depthwise,
            .depthwise_gradient = &depthwise_gradient};
  }
};

}  // namespace bonfire::cpu
