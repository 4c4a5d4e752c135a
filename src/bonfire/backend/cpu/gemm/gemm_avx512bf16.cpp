// Products of bf16 with vdpbf16ps: each word of a vector of sums gains the product of two pairs.

#include "bonfire/backend/cpu/gemm/gemm_avx512_template.h"
#include "bonfire/backend/cpu/gemm/gemm_finish_template.h"
#include "bonfire/backend/cpu/gemm/gemm_pack_bf16_template.h"

namespace bonfire::cpu {

namespace {

// Of finished tiles.
struct Isa : MaskedBf16Rows<Isa> {
  using Scalar = float;
  static constexpr int bytes = 64, mr = 1, vectors = 1;
};

// 32 registers: 28 sums, 2 of B, 2 for pairs of A.
constexpr int kMr = 14, kVectors = 2, kLanes = 16;

// Bits of two numbers of bf16, for every lane.
__m512i broadcast_pair(const uint16_t* pair) {
  int32_t word;
  __builtin_memcpy(&word, pair, sizeof word);
  return _mm512_set1_epi32(word);
}

template <int Rows, int Vectors>
void multiply_rows(int64_t kc, const uint16_t* a, const uint16_t* b, float* c, int64_t c_stride, bool add) {
  __m512 sum[Rows][Vectors] = {};
  for (int64_t k = 0; k < kc; k += 2, a += 2 * kMr, b += 2 * kVectors * kLanes) {
    __m512bh right[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) right[v] = (__m512bh)_mm512_loadu_si512(b + 2 * kLanes * v);
#pragma GCC unroll 14
    for (int r = 0; r < Rows; ++r) {
      const auto left = (__m512bh)broadcast_pair(a + 2 * r);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < Rows; ++r, c += c_stride)
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      if (add) sum[r][v] = _mm512_add_ps(sum[r][v], _mm512_loadu_ps(c + v * kLanes));
      _mm512_storeu_ps(c + v * kLanes, sum[r][v]);
    }
}

template <int Rows = kMr>
void multiply(int rows, int cols, int64_t kc, const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t b_stride,
              float* c, int64_t c_stride, bool add) {
  if (rows < Rows) {
    if constexpr (Rows > 1) multiply<Rows - 1>(rows, cols, kc, a, a_stride, b, b_stride, c, c_stride, add);
  } else if (cols > kLanes) {
    multiply_rows<Rows, 2>(kc, a, b, c, c_stride, add);
  } else {
    multiply_rows<Rows, 1>(kc, a, b, c, c_stride, add);
  }
}

}  // namespace

Bf16Kernel gemm_kernel_avx512bf16() {
  Bf16Kernel kernel{};
  kernel.mr = kMr;
  kernel.nr = kVectors * kLanes;
  kernel.group_a = kernel.group_b = 2;
  kernel.lanes = kLanes;
  kernel.kc = 576;
  kernel.block_a = 224;
  kernel.block_b = 256;
  kernel.chunk_a = 56;
  kernel.ask_ahead = false;
  kernel.alone = 4.8e6;
  kernel.multiply = &multiply<>;
  kernel.finish = &GemmFinish<Isa>::finish;
  kernel.pack = &PackBf16<Isa>::pack;
  return kernel;
}

}  // namespace bonfire::cpu
