#pragma once
// Beginnings of vectors with AVX-512's masks, for gemm_finish_template.h. `Isa` as in gemm_kernel_template.h.

#include <immintrin.h>

#include "bonfire/backend/cpu/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa, class Scalar>
struct MaskedRows {};

template <class Isa>
struct MaskedRows<Isa, float> {
  using Vector = VectorType<float, 64>;

  static __mmask16 mask(int count) { return static_cast<__mmask16>((1U << count) - 1); }

  static Vector load_start(const float* from, int count) { return (Vector)_mm512_maskz_loadu_ps(mask(count), from); }
  static Vector load_start(const uint16_t* from, int count) {  // bf16
    const __m256i half = _mm256_maskz_loadu_epi16(mask(count), from);
    return (Vector)_mm512_maskz_slli_epi32(mask(count), _mm512_maskz_cvtepu16_epi32(mask(count), half), 16);
  }
  static void store_start(float* to, int count, Vector value) { _mm512_mask_storeu_ps(to, mask(count), (__m512)value); }
};

// With AVX512-BF16, also rounding to bf16 (numbers below 2^-126 become zero).
template <class Isa>
struct MaskedBf16Rows : MaskedRows<Isa, float> {
  using typename MaskedRows<Isa, float>::Vector;
  using MaskedRows<Isa, float>::mask;
  using MaskedRows<Isa, float>::store_start;

  static __m256i narrow(Vector value) { return (__m256i)_mm512_cvtneps_pbh((__m512)value); }
  static void store_start(uint16_t* to, int count, Vector value) {
    _mm256_mask_storeu_epi16(to, mask(count), narrow(value));
  }
};

}  // namespace bonfire::cpu
