#pragma once
// What AVX-512 does better than the plain vectors of the other templates: beginnings of vectors with masks, squares of
// 16 x 16 words transposed in registers. `Isa` as in gemm_kernel_template.h.

#include <immintrin.h>

#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa>
struct WordSquare {
  static constexpr int kWords = 16;  // of a vector
  typedef uint32_t Words __attribute__((vector_size(64)));

  // words[i][j] -> words[j][i]
  [[gnu::always_inline]] static void transpose(Words (&words)[kWords]) {
    Words pairs[kWords], quads[kWords];
#pragma GCC unroll 8
    for (int i = 0; i < kWords; i += 2) {
      pairs[i] =
          __builtin_shufflevector(words[i], words[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
      pairs[i + 1] =
          __builtin_shufflevector(words[i], words[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kWords; i += 4)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Words a = pairs[i + half], b = pairs[i + half + 2];
        quads[i + 2 * half] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        quads[i + 2 * half + 1] =
            __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
      }
      // Now quads[4 * g + c], quarter q, holds column 4 * q + c of the rows [4 * g, 4 * g + 4).
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Words even01 = even_quarters(quads[c], quads[c + 4]), odd01 = odd_quarters(quads[c], quads[c + 4]);
      const Words even23 = even_quarters(quads[c + 8], quads[c + 12]),
                  odd23 = odd_quarters(quads[c + 8], quads[c + 12]);
      words[c] = even_quarters(even01, even23);
      words[c + 8] = odd_quarters(even01, even23);
      words[c + 4] = even_quarters(odd01, odd23);
      words[c + 12] = odd_quarters(odd01, odd23);
    }
  }
  [[gnu::always_inline]] static Words even_quarters(Words a, Words b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  }
  [[gnu::always_inline]] static Words odd_quarters(Words a, Words b) {
    return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
};

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
