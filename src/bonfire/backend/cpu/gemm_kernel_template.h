#pragma once
// The innermost loops of gemm_kernel.h, written once over a vector type and compiled once per instruction set.
//
// `Isa` is a type of an unnamed namespace, so that each instruction-set file keeps its own instantiations, and nothing
// here calls an inline function that ordinary files share: the linker must never take their copy from here.
//
// Isa names: Scalar, bytes (of a vector), mr, vectors (of a tile's row), a_by_lane (multiply by a lane of a vector of
// A, held in a register by hold(), instead of a number broadcast from memory), kc, block_a, block_b.

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
  using Pair = VectorType<Scalar, 2 * sizeof(Scalar)>;
  using HalfVector = VectorType<Scalar, (kBytes > 32 ? kBytes / 2 : 16)>;

  template <class V>
  static constexpr int lanes_of = static_cast<int>(sizeof(V) / sizeof(Scalar));

  template <class V>
  [[gnu::always_inline]] static V load(const Scalar* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof(V));
    return value;
  }

  template <class V>
  [[gnu::always_inline]] static V load(const uint16_t* from) {  // bf16 widened
    constexpr int kCount = lanes_of<V>;
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

  // Hidden from the compiler, which would otherwise compute the addresses of all rows beforehand and spill them.
  [[gnu::always_inline]] static Scalar* next_row(Scalar* row, int64_t stride) {
    row += stride;
    asm("" : "+r"(row));
    return row;
  }

  template <int Rows, int Vectors>
  static void multiply_rows(int64_t kc, const Scalar* a, const Scalar* b, int64_t b_stride, Scalar* c, int64_t c_stride,
                            bool add) {
    Scalar* to = c;
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {  // the result is needed when the sums are ready
      __builtin_prefetch(to, 1);
      __builtin_prefetch(to + Vectors * kLanes - 1, 1);
      to = next_row(to, c_stride);
    }
    Vector sum[Rows][Vectors] = {};
    for (int64_t k = 0; k < kc; ++k) {
      Vector right[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) right[v] = load<Vector>(b + v * kLanes);
      if constexpr (Isa::a_by_lane && Rows % kQuad == 0) {
#pragma GCC unroll 32
        for (int group = 0; group < Rows / kQuad; ++group) {
          Quad left = load<Quad>(a + group * kQuad);
          Isa::hold(left);
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
    to = c;
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        if (add) sum[r][v] += load<Vector>(to + v * kLanes);
        store(to + v * kLanes, sum[r][v]);
      }
      to = next_row(to, c_stride);
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

  // ---- dot ----

  template <int Rows>
  static void dot_rows(int64_t k_end, const Scalar* rows, int64_t row_stride, const Scalar* x, Scalar* out) {
    Vector even[Rows] = {}, odd[Rows] = {};
    int64_t k = 0;
    for (; k + 2 * kLanes <= k_end; k += 2 * kLanes) {
      const Vector x0 = load<Vector>(x + k), x1 = load<Vector>(x + k + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        even[r] += load<Vector>(rows + r * row_stride + k) * x0;
        odd[r] += load<Vector>(rows + r * row_stride + k + kLanes) * x1;
      }
    }
    for (int r = 0; r < Rows; ++r) {
      const Vector sums = even[r] + odd[r];
      Scalar sum = 0;
      for (int i = 0; i < kLanes; ++i) sum += sums[i];
      for (int64_t rest = k; rest < k_end; ++rest) sum += rows[r * row_stride + rest] * x[rest];
      out[r] = sum;
    }
  }

  static void dot(int64_t count, int64_t k, const Scalar* rows, int64_t row_stride, const Scalar* x, Scalar* out) {
    int64_t r = 0;
    for (; r + 4 <= count; r += 4) dot_rows<4>(k, rows + r * row_stride, row_stride, x, out + r);
    for (; r < count; ++r) dot_rows<1>(k, rows + r * row_stride, row_stride, x, out + r);
  }

  // ---- pack ----

  template <class Source>
  using Pack = PackPanels<Source, Scalar>;

  template <class Source>
  static void pack_scalar(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const Source* from = p.source + p.lane_offset[lane];
    for (int64_t k = k_begin; k < k_end; ++k, to += p.width) *to = widen(from[p.k_offset[k]]);
  }

  // As many lanes as V has, from `lane`, that the source holds side by side.
  template <class V, class Source>
  static void pack_adjacent(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const Source* from = p.source + p.lane_offset[lane];
    for (int64_t k = k_begin; k < k_end; ++k, to += p.width) store(to, load<V>(from + p.k_offset[k]));
  }

  // kLanes lanes that lie in two runs, the second beginning `cut` lanes after the first: both runs are read as whole
  // vectors and blended.
  template <class Source>
  static void pack_two_runs(const Pack<Source>& p, int64_t lane, int cut, int64_t k_begin, int64_t k_end, Scalar* to) {
    decltype(Vector{} < Vector{}) second{};
    for (int i = 0; i < kLanes; ++i) second[i] = i >= cut ? -1 : 0;
    const Source* from0 = p.source + p.lane_offset[lane];
    const Source* from1 = p.source + p.lane_offset[lane + cut] - cut;
    for (int64_t k = k_begin; k < k_end; ++k, to += p.width) {
      Vector low = load<Vector>(from0 + p.k_offset[k]), high = load<Vector>(from1 + p.k_offset[k]);
      Vector both = second ? high : low;
      store(to, both);
    }
  }

  static int64_t run_length(const int64_t* offset, int64_t first, int64_t end) {
    int64_t i = first + 1;
    while (i < end && offset[i] == offset[i - 1] + 1) ++i;
    return i - first;
  }

  // As much of a run of lanes as one copy can do; returns how many lanes.
  template <class Source>
  static int64_t pack_run(const Pack<Source>& p, int64_t lane, int64_t run, int64_t end, int64_t k, int64_t k_end,
                          Scalar* to) {
    if (run >= kLanes) {
      pack_adjacent<Vector>(p, lane, k, k_end, to);
      return kLanes;
    }
    if (p.over_read && lane + kLanes <= end && run + run_length(p.lane_offset, lane + run, end) >= kLanes) {
      pack_two_runs(p, lane, static_cast<int>(run), k, k_end, to);
      return kLanes;
    }
    if (run >= lanes_of<HalfVector>) {
      pack_adjacent<HalfVector>(p, lane, k, k_end, to);
      return lanes_of<HalfVector>;
    }
    if (run >= kQuad) {
      pack_adjacent<Quad>(p, lane, k, k_end, to);
      return kQuad;
    }
    if (run >= 2) {
      pack_adjacent<Pair>(p, lane, k, k_end, to);
      return 2;
    }
    pack_scalar(p, lane, k, k_end, to);
    return 1;
  }

  // For sources whose lanes lie side by side: a few steps of all panels at a time, so that memory is read in its order.
  template <class Source>
  static void pack_by_lanes(const Pack<Source>& p) {
    constexpr int64_t kSteps = 32;
    for (int64_t k = 0; k < p.kc; k += kSteps) {
      const int64_t k_end = k + kSteps < p.kc ? k + kSteps : p.kc;
      for (int64_t panel = 0; panel < p.lanes; panel += p.width) {
        const int64_t end = panel + p.width < p.lanes ? panel + p.width : p.lanes;
        Scalar* to = p.panels + panel * p.kc + k * p.width;
        for (int64_t lane = panel; lane < end;) {
          const int64_t run = run_length(p.lane_offset, lane, lane + kLanes < end ? lane + kLanes : end);
          lane += pack_run(p, lane, run, end, k, k_end, to + (lane - panel));
        }
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

  // Two lanes by kQuad steps.
  template <class Source>
  [[gnu::always_inline]] static void transpose_pair(const Source* from0, const Source* from1, Scalar* to, int width) {
    Quad r0 = load<Quad>(from0), r1 = load<Quad>(from1);
    Scalar pairs[2 * kQuad];
    if constexpr (kQuad == 4) {
      store(pairs, Quad(__builtin_shufflevector(r0, r1, 0, 4, 1, 5)));
      store(pairs + 4, Quad(__builtin_shufflevector(r0, r1, 2, 6, 3, 7)));
    } else {
      store(pairs, Quad(__builtin_shufflevector(r0, r1, 0, 2)));
      store(pairs + 2, Quad(__builtin_shufflevector(r0, r1, 1, 3)));
    }
#pragma GCC unroll 4
    for (int k = 0; k < kQuad; ++k) store(to + k * width, load<Pair>(pairs + 2 * k));
  }

  // `Lanes` (kQuad or 2) lanes over the steps [k_begin, k_end) that lie side by side.
  template <int Lanes, class Source>
  static void pack_rows(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const Source* from[kQuad];
    for (int i = 0; i < Lanes; ++i) from[i] = p.source + p.lane_offset[lane + i] + p.k_offset[k_begin];
    const int64_t ahead = lane + Lanes < p.lanes ? p.lane_offset[lane + Lanes] - p.lane_offset[lane] : 0;
    int64_t k = 0;
    for (; k + kQuad <= k_end - k_begin; k += kQuad, to += kQuad * p.width) {
      for (int i = 0; i < Lanes; ++i) __builtin_prefetch(from[i] + k + ahead);
      if constexpr (Lanes == kQuad)
        transpose(from, k, to, p.width);
      else
        transpose_pair(from[0] + k, from[1] + k, to, p.width);
    }
    for (int i = 0; i < Lanes; ++i) pack_scalar(p, lane + i, k_begin + k, k_end, to + i);
  }

  // For sources whose steps of K lie side by side.
  template <class Source>
  static void pack_by_steps(const Pack<Source>& p) {
    for (int64_t k = 0; k < p.kc;) {
      const int64_t k_end = k + run_length(p.k_offset, k, p.kc);
      for (int64_t panel = 0; panel < p.lanes; panel += p.width) {
        const int64_t end = panel + p.width < p.lanes ? panel + p.width : p.lanes;
        Scalar* to = p.panels + panel * p.kc + k * p.width;
        int64_t lane = panel;
        for (; lane + kQuad <= end; lane += kQuad) pack_rows<kQuad>(p, lane, k, k_end, to + (lane - panel));
        for (; lane + 2 <= end; lane += 2) pack_rows<2>(p, lane, k, k_end, to + (lane - panel));
        if (lane < end) pack_scalar(p, lane, k, k_end, to + (lane - panel));
      }
      k = k_end;
    }
  }

  template <class Source>
  static void zero_missing_lanes(const Pack<Source>& p) {
    const int64_t panel = p.lanes / p.width * p.width;
    Scalar* to = p.panels + panel * p.kc;
    for (int64_t k = 0; k < p.kc; ++k, to += p.width)
      for (int64_t i = p.lanes - panel; i < p.width; ++i) to[i] = 0;
  }

  template <class Source>
  static void pack(const Pack<Source>& p) {
    if (p.lanes % p.width != 0) zero_missing_lanes(p);
    auto average_run = [](const int64_t* offset, int64_t count) {
      int64_t runs = 1;
      for (int64_t i = 1; i < count; ++i) runs += offset[i] != offset[i - 1] + 1;
      return static_cast<double>(count) / static_cast<double>(runs);
    };
    const double lane_run = average_run(p.lane_offset, p.lanes), k_run = average_run(p.k_offset, p.kc);
    if (lane_run >= k_run || (lane_run >= kQuad && k_run < 4 * lane_run))
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
      Vector y = x;
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
                                                const Out* old) {
    Vector value = load<Vector>(tile + c);
    if (t.add) value += load<Vector>(old);
    if (t.row_bias) value += t.row_bias[r];
    if (t.col_bias) value += load<Vector>(t.col_bias + c);
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
        narrow(to, finished(t, r, c, tile, to));
      }
      for (; c < t.cols; c += kLanes) {  // through a copy: the end of a row, or columns that are not adjacent
        const int count = t.cols - c < kLanes ? t.cols - c : kLanes;
        Out part[kLanes] = {};
        if (t.add)
          for (int i = 0; i < count; ++i) part[i] = out[t.col_offset[c + i]];
        narrow(part, finished(t, r, c, tile, part));
        if (adjacent) {
          copy_start(part, count, out + t.col_offset[c]);
        } else {
          for (int i = 0; i < count; ++i) out[t.col_offset[c + i]] = part[i];
        }
      }
    }
  }

  // The first `count` < kLanes elements.
  template <class Out>
  [[gnu::always_inline]] static void copy_start(const Out* from, int count, Out* to) {
#pragma GCC unroll 4
    for (int size = 8; size > 0; size /= 2)
      if (size < kLanes && count & size) {
        __builtin_memcpy(to, from, size * sizeof(Out));
        from += size;
        to += size;
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
    k.dot = &dot;
    k.finish = &finish;
    k.pack = &pack<Scalar>;
    if constexpr (sizeof(Scalar) == 4) k.pack_bf16 = &pack<uint16_t>;
    static_assert(kMr <= kMaxPanelWidth && kNr <= kMaxPanelWidth && Isa::kc <= kMaxSliceK);
    return k;
  }
};

}  // namespace bonfire::cpu
