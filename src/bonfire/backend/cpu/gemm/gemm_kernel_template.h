#pragma once
// The innermost loops of gemm_kernel.h, written once over a vector type and compiled once per instruction set.
//
// `Isa` is a type of an unnamed namespace, so that each instruction-set file keeps its own instantiations, and nothing
// here calls an inline function that ordinary files share: the linker must never take their copy from here.
//
// Isa names: Scalar, bytes (of a vector), mr, vectors (of a tile's row), a_by_lane (multiply by a lane of a vector of
// A, held in a register by hold(), instead of a number broadcast from memory), kc, block_a, block_b, chunk_a,
// ask_ahead.

#include "bonfire/backend/cpu/gemm/gemm_finish_template.h"
#include "bonfire/backend/cpu/gemm/gemm_pack_template.h"
#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa>
struct GemmTemplate {
  using G = GemmVectors<Isa>;
  using Scalar = typename G::Scalar;
  using Vector = typename G::Vector;
  using Quad = typename G::Quad;
  static constexpr int kLanes = G::kLanes;
  static constexpr int kMr = G::kMr;
  static constexpr int kVectors = G::kVectors;
  static constexpr int kNr = G::kNr;
  static constexpr int kQuad = G::kQuad;

  // Hidden from the compiler, which would otherwise compute the addresses of all rows beforehand and spill them.
  [[gnu::always_inline]] static Scalar* next_row(Scalar* row, int64_t stride) {
    row += stride;
    asm("" : "+r"(row));
    return row;
  }

  // How numbers of A reach a tile of `Rows` rows: next() goes on to the next step of K.
  template <int Rows>
  struct PackedLanes {
    const Scalar* at;
    int64_t stride;
    PackedLanes(const Scalar* a, int64_t a_stride) : at(a), stride(a_stride) {}
    [[gnu::always_inline]] Scalar operator[](int r) const { return at[r]; }
    [[gnu::always_inline]] void next() { at += stride; }
  };
  // Every third row has a pointer, the two after it are addressed from there: all fits into registers.
  template <int Rows>
  struct MemoryRows {
    static constexpr int kPointers = (Rows + 2) / 3;
    const Scalar* at[kPointers];
    int64_t stride;
    [[gnu::always_inline]] MemoryRows(const Scalar* a, int64_t a_stride) : stride(a_stride) {
#pragma GCC unroll 8
      for (int i = 0; i < kPointers; ++i, a += 3 * stride) {
        at[i] = a;
        asm("" : "+r"(at[i]));
      }
    }
    [[gnu::always_inline]] Scalar operator[](int r) const { return at[r / 3][r % 3 * stride]; }
    [[gnu::always_inline]] void next() {
#pragma GCC unroll 8
      for (int i = 0; i < kPointers; ++i) ++at[i];
    }
  };

  template <int Rows, int Vectors, template <int> class Left>
  static void multiply_tile(int64_t kc, const Scalar* a, int64_t a_stride, const Scalar* b, int64_t b_stride, Scalar* c,
                            int64_t c_stride, bool add) {
    Scalar* to = c;
    if (kc > 8) {
#pragma GCC unroll 32
      for (int r = 0; r < Rows; ++r) {  // the result is needed when the sums are ready
        __builtin_prefetch(to, 1);
        __builtin_prefetch(to + Vectors * kLanes - 1, 1);
        to = next_row(to, c_stride);
      }
    }
    Vector sum[Rows][Vectors] = {};
    Left<Rows> left(a, a_stride);
    for (int64_t k = 0; k < kc; ++k) {
      Vector right[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) right[v] = G::template load<Vector>(b + v * kLanes);
      if constexpr (Isa::a_by_lane && Rows % kQuad == 0) {
#pragma GCC unroll 32
        for (int group = 0; group < Rows / kQuad; ++group) {
          Quad lanes = G::template load<Quad>(left.at + group * kQuad);
          Isa::hold(lanes);
#pragma GCC unroll 32
          for (int r = 0; r < kQuad; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sum[group * kQuad + r][v] += right[v] * lanes[r];
        }
      } else {
#pragma GCC unroll 32
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < Vectors; ++v) sum[r][v] += right[v] * left[r];
      }
      left.next();
      b += b_stride;
    }
    to = c;
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        if (add) sum[r][v] += G::template load<Vector>(to + v * kLanes);
        G::store(to + v * kLanes, sum[r][v]);
      }
      to = next_row(to, c_stride);
    }
  }

  template <template <int> class Left, int Vectors, int Rows = kMr>
  static void multiply_vectors(int rows, int64_t kc, const Scalar* a, int64_t a_stride, const Scalar* b,
                               int64_t b_stride, Scalar* c, int64_t c_stride, bool add) {
    if (rows == Rows) {
      multiply_tile<Rows, Vectors, Left>(kc, a, a_stride, b, b_stride, c, c_stride, add);
    } else if constexpr (Rows > 1) {
      multiply_vectors<Left, Vectors, Rows - 1>(rows, kc, a, a_stride, b, b_stride, c, c_stride, add);
    }
  }

  template <template <int> class Left, int Vectors = kVectors>
  static void multiply(int rows, int cols, int64_t kc, const Scalar* a, int64_t a_stride, const Scalar* b,
                       int64_t b_stride, Scalar* c, int64_t c_stride, bool add) {
    if (cols > (Vectors - 1) * kLanes) {
      multiply_vectors<Left, Vectors>(rows, kc, a, a_stride, b, b_stride, c, c_stride, add);
    } else if constexpr (Vectors > 1) {
      multiply<Left, Vectors - 1>(rows, cols, kc, a, a_stride, b, b_stride, c, c_stride, add);
    }
  }

  // ---- dot ----

  template <int Rows>
  static void dot_rows(int64_t k_end, const Scalar* rows, int64_t row_stride, const Scalar* x, Scalar* out) {
    Vector even[Rows] = {}, odd[Rows] = {};
    int64_t k = 0;
    for (; k + 2 * kLanes <= k_end; k += 2 * kLanes) {
      const Vector x0 = G::template load<Vector>(x + k), x1 = G::template load<Vector>(x + k + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        even[r] += G::template load<Vector>(rows + r * row_stride + k) * x0;
        odd[r] += G::template load<Vector>(rows + r * row_stride + k + kLanes) * x1;
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

  static GemmKernel<Scalar> kernel() {
    GemmKernel<Scalar> k{};
    k.mr = kMr;
    k.nr = kNr;
    k.lanes = kLanes;
    k.kc = Isa::kc;
    k.block_a = Isa::block_a;
    k.block_b = Isa::block_b;
    k.chunk_a = Isa::chunk_a;
    k.swept_b = 32 << 10;
    k.ask_ahead = Isa::ask_ahead;
    k.alone = 3e5 * kLanes;
    k.multiply = &multiply<PackedLanes>;
    if constexpr (!Isa::a_by_lane) k.multiply_rows = &multiply<MemoryRows>;
    k.dot = &dot;
    k.finish = &GemmFinish<Isa>::finish;
    k.pack = &GemmPack<Isa>::template pack<Scalar>;
    if constexpr (sizeof(Scalar) == 4) k.pack_bf16 = &GemmPack<Isa>::template pack<uint16_t>;
    static_assert(kMr <= kMaxPanelWidth && kNr <= kMaxPanelWidth && Isa::kc <= kMaxSliceK);
    return k;
  }
};

}  // namespace bonfire::cpu
