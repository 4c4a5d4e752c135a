#pragma once
// The innermost loops of gemm_kernel.h, written once over a vector type and compiled once per instruction set.
//
// `Isa` is a type of an unnamed namespace, so that each instruction-set file keeps its own instantiations, and nothing
// here calls an inline function that ordinary files share: the linker must never take their copy from here.
//
// Isa names: Scalar, bytes (of a vector), mr, vectors (of a tile's row), a_by_lane (multiply by a lane of a vector of A
// instead of a number broadcast from memory), kc, block_a, block_b.

#include "bonfire/backend/cpu/gemm_kernel.h"

namespace bonfire::cpu {

template <class Element, int bytes>
struct VectorOf {
  typedef Element type __attribute__((vector_size(bytes)));
};
template <class Element, int bytes>
using VectorType = typename VectorOf<Element, bytes>::type;

template <class Isa>
struct GemmTemplate {
  using Scalar = typename Isa::Scalar;
  static constexpr int kBytes = Isa::bytes;
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(Scalar));
  static constexpr int kMr = Isa::mr;
  static constexpr int kVectors = Isa::vectors;
  static constexpr int kNr = kVectors * kLanes;
  static constexpr int kQuad = 16 / static_cast<int>(sizeof(Scalar));  // lanes of a 16-byte vector

  using Vector = VectorType<Scalar, kBytes>;
  using Quad = VectorType<Scalar, 16>;

  template <class V>
  [[gnu::always_inline]] static V load(const Scalar* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof(V));
    return value;
  }

  template <class V>
  [[gnu::always_inline]] static V load(const uint16_t* from) {  // bf16 widened
    constexpr int kCount = sizeof(V) / sizeof(Scalar);
    using Word = VectorType<uint32_t, 4 * kCount>;
    VectorType<uint16_t, 2 * kCount> half;
    __builtin_memcpy(&half, from, sizeof half);
    Word word = __builtin_convertvector(half, Word) << 16;
    V value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }

  template <class V>
  [[gnu::always_inline]] static void store(Scalar* to, const V& value) {
    __builtin_memcpy(to, &value, sizeof(V));
  }

  [[gnu::always_inline]] static Scalar widen(Scalar value) { return value; }
  [[gnu::always_inline]] static Scalar widen(uint16_t bits) {
    uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }

  // ---- multiply ----

  template <int Rows, int Vectors>
  static void multiply_rows(int64_t kc, const Scalar* a, const Scalar* b, int64_t b_stride, Scalar* c, int64_t c_stride,
                            bool add) {
    Vector sum[Rows][Vectors] = {};
    for (int64_t k = 0; k < kc; ++k) {
      Vector right[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) right[v] = load<Vector>(b + v * kLanes);
      if constexpr (Isa::a_by_lane && Rows % kQuad == 0) {
#pragma GCC unroll 32
        for (int group = 0; group < Rows / kQuad; ++group) {
          Quad left = load<Quad>(a + group * kQuad);
#pragma GCC unroll 32
          for (int r = 0; r < kQuad; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sum[group * kQuad + r][v] += right[v] * left[r];
        }
      } else {
#pragma GCC unroll 32
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < Vectors; ++v) sum[r][v] += right[v] * a[r];
      }
      a += kMr;
      b += b_stride;
    }
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        Scalar* to = c + r * c_stride + v * kLanes;
        if (add) sum[r][v] += load<Vector>(to);
        store(to, sum[r][v]);
      }
  }

  template <int Vectors, int Rows = kMr>
  static void multiply_vectors(int rows, int64_t kc, const Scalar* a, const Scalar* b, int64_t b_stride, Scalar* c,
                               int64_t c_stride, bool add) {
    if (rows == Rows) {
      multiply_rows<Rows, Vectors>(kc, a, b, b_stride, c, c_stride, add);
    } else if constexpr (Rows > 1) {
      multiply_vectors<Vectors, Rows - 1>(rows, kc, a, b, b_stride, c, c_stride, add);
    }
  }

  template <int Vectors = kVectors>
  static void multiply(int rows, int cols, int64_t kc, const Scalar* a, const Scalar* b, int64_t b_stride, Scalar* c,
                       int64_t c_stride, bool add) {
    if (cols > (Vectors - 1) * kLanes) {
      multiply_vectors<Vectors>(rows, kc, a, b, b_stride, c, c_stride, add);
    } else if constexpr (Vectors > 1) {
      multiply<Vectors - 1>(rows, cols, kc, a, b, b_stride, c, c_stride, add);
    }
  }

  // ---- pack ----

  template <class Source>
  static void zero_missing_lanes(const PackPanel<Source, Scalar>& p) {
    for (int64_t k = 0; k < p.kc; ++k)
      for (int lane = p.lanes; lane < p.width; ++lane) p.panel[k * p.width + lane] = 0;
  }

  template <class Source>
  static void pack_scalar(const PackPanel<Source, Scalar>& p, int lane, int64_t k_begin, int64_t k_end) {
    const Source* from = p.source + p.lane_offset[lane];
    for (int64_t k = k_begin; k < k_end; ++k) p.panel[k * p.width + lane] = widen(from[p.k_offset[k]]);
  }

  // Lanes [first, first + lanes of V) when the source holds them side by side.
  template <class V, class Source>
  static void pack_adjacent(const PackPanel<Source, Scalar>& p, int first) {
    const Source* from = p.source + p.lane_offset[first];
    Scalar* to = p.panel + first;
    for (int64_t k = 0; k < p.kc; ++k) store(to + k * p.width, load<V>(from + p.k_offset[k]));
  }

  // Lanes [first, first + kLanes) that lie in two runs, the second beginning at lane `cut`: both runs are read as whole
  // vectors and blended.
  template <class Source>
  static void pack_two_runs(const PackPanel<Source, Scalar>& p, int first, int cut) {
    using Index = decltype(Vector{} < Vector{});
    Index second;
    for (int i = 0; i < kLanes; ++i) second[i] = i >= cut ? -1 : 0;
    const Source* from0 = p.source + p.lane_offset[first];
    const Source* from1 = p.source + p.lane_offset[first + cut] - cut;
    Scalar* to = p.panel + first;
    for (int64_t k = 0; k < p.kc; ++k) {
      Vector low = load<Vector>(from0 + p.k_offset[k]), high = load<Vector>(from1 + p.k_offset[k]);
      Vector both = second ? high : low;
      store(to + k * p.width, both);
    }
  }

  static int run_length(const int64_t* offset, int first, int end) {
    int i = first + 1;
    while (i < end && offset[i] == offset[i - 1] + 1) ++i;
    return i - first;
  }

  // For sources whose lanes lie side by side.
  template <class Source>
  static void pack_by_lanes(const PackPanel<Source, Scalar>& p) {
    int lane = 0;
    while (lane < p.lanes) {
      int run = run_length(p.lane_offset, lane, p.lanes);
      if (run >= kLanes) {
        pack_adjacent<Vector>(p, lane);
        lane += kLanes;
      } else if (p.over_read && lane + kLanes <= p.lanes &&
                 run + run_length(p.lane_offset, lane + run, p.lanes) >= kLanes) {
        pack_two_runs(p, lane, run);
        lane += kLanes;
      } else if (run >= kQuad) {
        pack_adjacent<Quad>(p, lane);
        lane += kQuad;
      } else {
        pack_scalar(p, lane++, 0, p.kc);
      }
    }
  }

  // A square of kQuad lanes by kQuad steps, transposed in registers. `from[i]` is lane i at the first step.
  template <class Source>
  [[gnu::always_inline]] static void transpose(const Source* const (&from)[kQuad], int64_t k, Scalar* to, int width) {
    if constexpr (kQuad == 4) {
      Quad r0 = load<Quad>(from[0] + k), r1 = load<Quad>(from[1] + k);
      Quad r2 = load<Quad>(from[2] + k), r3 = load<Quad>(from[3] + k);
      Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      store(to, Quad(__builtin_shufflevector(low01, low23, 0, 1, 4, 5)));
      store(to + width, Quad(__builtin_shufflevector(low01, low23, 2, 3, 6, 7)));
      store(to + 2 * width, Quad(__builtin_shufflevector(high01, high23, 0, 1, 4, 5)));
      store(to + 3 * width, Quad(__builtin_shufflevector(high01, high23, 2, 3, 6, 7)));
    } else {
      Quad r0 = load<Quad>(from[0] + k), r1 = load<Quad>(from[1] + k);
      store(to, Quad(__builtin_shufflevector(r0, r1, 0, 2)));
      store(to + width, Quad(__builtin_shufflevector(r0, r1, 1, 3)));
    }
  }

  // For sources whose steps of K lie side by side.
  template <class Source>
  static void pack_by_steps(const PackPanel<Source, Scalar>& p) {
    for (int64_t k_begin = 0; k_begin < p.kc;) {
      int64_t k_end = k_begin + 1;
      while (k_end < p.kc && p.k_offset[k_end] == p.k_offset[k_end - 1] + 1) ++k_end;
      int lane = 0;
      for (; lane + kQuad <= p.lanes; lane += kQuad) {
        const Source* from[kQuad];
        for (int i = 0; i < kQuad; ++i) from[i] = p.source + p.lane_offset[lane + i] + p.k_offset[k_begin];
        int64_t k = k_begin;
        for (; k + kQuad <= k_end; k += kQuad) transpose(from, k - k_begin, p.panel + k * p.width + lane, p.width);
        for (int i = 0; i < kQuad; ++i) pack_scalar(p, lane + i, k, k_end);
      }
      for (; lane < p.lanes; ++lane) pack_scalar(p, lane, k_begin, k_end);
      k_begin = k_end;
    }
  }

  template <class Source>
  static void pack(const PackPanel<Source, Scalar>& p) {
    if (p.lanes < p.width) zero_missing_lanes(p);
    int runs = 1;
    for (int lane = 1; lane < p.lanes; ++lane) runs += p.lane_offset[lane] != p.lane_offset[lane - 1] + 1;
    double lane_run = static_cast<double>(p.lanes) / runs;
    if (lane_run >= p.k_run || (lane_run >= kQuad && p.k_run < 4 * lane_run))
      pack_by_lanes(p);
    else
      pack_by_steps(p);
  }

  // ---- finish ----

  // exp for x in [-87, 88]: 2^n * 2^f with a polynomial for 2^f, |f| <= 1/2; relative error about 1e-7.
  static Vector exponential(Vector x) {
    using Integer = VectorType<int32_t, kBytes>;
    Vector t = x * 1.44269504F;
    Vector shifted = t + 12582912.0F;  // 1.5 * 2^23: the sum is rounded to an integer
    Vector whole = shifted - 12582912.0F;
    Vector f = t - whole;
    Vector p = f * 1.535336188e-4F + 1.339887440e-3F;
    p = p * f + 9.618437357e-3F;
    p = p * f + 5.550332548e-2F;
    p = p * f + 2.402264791e-1F;
    p = p * f + 6.931472028e-1F;
    p = p * f + 1.0F;
    Integer scale = (__builtin_convertvector(whole, Integer) + 127) << 23;
    Vector power;
    __builtin_memcpy(&power, &scale, sizeof power);
    return p * power;
  }

  static Vector gelu(Vector x) {
    constexpr Scalar kSqrt2OverPi = static_cast<Scalar>(0.79788456080286535588), kCubic = static_cast<Scalar>(0.044715);
    Vector u = (x + x * x * x * kCubic) * kSqrt2OverPi;
    if constexpr (sizeof(Scalar) == 4) {
      // x * (1 + tanh u) / 2 = x / (1 + exp(-2u))
      Vector exponent = u * Scalar(-2);
      exponent = exponent > Scalar(80) ? Vector{} + Scalar(80) : exponent;
      exponent = exponent < Scalar(-80) ? Vector{} - Scalar(80) : exponent;
      return x / (exponential(exponent) + Scalar(1));
    } else {
      Vector y;
      for (int i = 0; i < kLanes; ++i) y[i] = x[i] * (1 + __builtin_tanh(u[i])) / 2;
      return y;
    }
  }

  static uint16_t to_bf16(float value) {  // round to nearest even; NaN stays NaN
    uint32_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    if (value != value) return static_cast<uint16_t>((word >> 16) | 0x40U);
    return static_cast<uint16_t>((word + 0x7FFFU + ((word >> 16) & 1U)) >> 16);
  }

  static void store_bf16(uint16_t* to, const Vector& value) {
    if constexpr (sizeof(Scalar) == 4) {
      using Word = VectorType<uint32_t, kBytes>;
      using Half = VectorType<uint16_t, kBytes / 2>;
      Word word;
      __builtin_memcpy(&word, &value, sizeof word);
      Word rounded = (word + 0x7FFFU + ((word >> 16) & 1U)) >> 16;
      Word quiet = (word >> 16) | 0x40U;
      Half half = __builtin_convertvector(value != value ? quiet : rounded, Half);
      __builtin_memcpy(to, &half, sizeof half);
    }
  }

  template <class Out>
  [[gnu::always_inline]] static Vector finished(const FinishTile<Scalar>& t, int r, int c, const Scalar* tile,
                                                const Scalar* col_bias, const Out* old) {
    Vector value = load<Vector>(tile + c);
    if (t.add) value += load<Vector>(old);
    if (t.row_bias) value += t.row_bias[r];
    if (col_bias) value += load<Vector>(col_bias + c);
    if (t.activation == Activation::relu) {
      // Written so that NaN passes through.
      value = value < Scalar(0) ? Vector{} : value;
    } else if (t.activation == Activation::gelu_tanh) {
      value = gelu(value);
    }
    return value;
  }

  [[gnu::always_inline]] static void narrow(Scalar* to, const Vector& value) { store(to, value); }
  [[gnu::always_inline]] static void narrow(uint16_t* to, const Vector& value) { store_bf16(to, value); }

  template <class Out>
  static void finish_as(const FinishTile<Scalar>& t) {
    bool adjacent = t.col_offset[t.cols - 1] - t.col_offset[0] == t.cols - 1;
    int whole = adjacent ? t.cols / kLanes * kLanes : 0;
    for (int r = 0; r < t.rows; ++r) {
      Out* out = static_cast<Out*>(t.out) + t.row_offset[r];
      const Scalar* tile = t.tile + r * t.tile_stride;
      int c = 0;
      for (; c < whole; c += kLanes) {
        Out* to = out + t.col_offset[c];
        narrow(to, finished(t, r, c, tile, t.col_bias, to));
      }
      for (; c < t.cols; c += kLanes) {  // through a copy: the end of a row, or columns that are not adjacent
        int count = t.cols - c < kLanes ? t.cols - c : kLanes;
        Scalar value[kLanes] = {}, bias[kLanes] = {};
        Out old[kLanes] = {};
        for (int i = 0; i < count; ++i) {
          value[i] = tile[c + i];
          if (t.col_bias) bias[i] = t.col_bias[c + i];
          if (t.add) old[i] = out[t.col_offset[c + i]];
        }
        narrow(old, finished(t, r, 0, value, t.col_bias ? bias : nullptr, old));
        for (int i = 0; i < count; ++i) out[t.col_offset[c + i]] = old[i];
      }
    }
  }

  static void finish(const FinishTile<Scalar>& tile) {
    if constexpr (sizeof(Scalar) == 4) {
      if (tile.out_bf16) return finish_as<uint16_t>(tile);
    }
    finish_as<Scalar>(tile);
  }

  static GemmKernel<Scalar> kernel() {
    GemmKernel<Scalar> k{};
    k.mr = kMr;
    k.nr = kNr;
    k.lanes = kLanes;
    k.kc = Isa::kc;
    k.block_a = Isa::block_a;
    k.block_b = Isa::block_b;
    k.multiply = &multiply<>;
    k.finish = &finish;
    k.pack = &pack<Scalar>;
    if constexpr (sizeof(Scalar) == 4) k.pack_bf16 = &pack<uint16_t>;
    static_assert(kMr <= kMaxPanelWidth && kNr <= kMaxPanelWidth && Isa::kc <= kMaxSliceK);
    return k;
  }
};

}  // namespace bonfire::cpu
