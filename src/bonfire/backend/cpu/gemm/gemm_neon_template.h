#pragma once
// What the kernels with NEON have in common.

#include <arm_neon.h>

#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

// `Isa` is a type of an unnamed namespace, as in gemm_kernel_template.h.
template <class Isa>
struct Bf16OnNeon {
  // Four numbers of bf16 as words of f32. g++ takes a conversion of so short a vector apart.
  [[gnu::always_inline]] static VectorType<uint32_t, 16> widen(VectorType<uint16_t, 8> half) {
    return (VectorType<uint32_t, 16>)vshll_n_u16((uint16x4_t)half, 16);
  }

  // Back again, rounded to nearest even; NaN stays NaN.
  [[gnu::always_inline]] static uint16x4_t narrow(VectorType<float, 16> value) {
    const auto number = (float32x4_t)value;
    const uint32x4_t word = vreinterpretq_u32_f32(number);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(word, 16), vdupq_n_u32(1));
    const uint16x4_t rounded = vaddhn_u32(word, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint16x4_t quiet = vorr_u16(vshrn_n_u32(word, 16), vdup_n_u16(0x40));
    return vbsl_u16(vmovn_u32(vceqq_f32(number, number)), rounded, quiet);
  }
};

}  // namespace bonfire::cpu
