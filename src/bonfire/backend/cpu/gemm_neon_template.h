#pragma once
// What the kernels with NEON have in common.

#include <arm_neon.h>

#include "bonfire/backend/cpu/gemm_vector_template.h"

namespace bonfire::cpu {

// `Isa` is a type of an unnamed namespace, as in gemm_kernel_template.h.
template <class Isa>
struct WidenedBf16 {
  // Four numbers of bf16 as words of f32. g++ takes a conversion of so short a vector apart.
  [[gnu::always_inline]] static VectorType<uint32_t, 16> widen(VectorType<uint16_t, 8> half) {
    return (VectorType<uint32_t, 16>)vshll_n_u16((uint16x4_t)half, 16);
  }
};

}  // namespace bonfire::cpu
