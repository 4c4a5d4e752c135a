#include "bonfire/backend/cpu/gemm_kernel.h"

#include <type_traits>

namespace bonfire::cpu {

namespace {

#if defined(BONFIRE_HAVE_NEON)
const GemmKernels& neon_kernels() {
  static const GemmKernels kernels = gemm_kernels_neon();
  return kernels;
}
#endif
#if defined(BONFIRE_HAVE_AVX512)
const GemmKernels& avx512_kernels() {
  static const GemmKernels kernels = gemm_kernels_avx512();
  return kernels;
}
#endif

// A table with products of bf16 added.
[[maybe_unused]] GemmKernels with_bf16(const GemmKernels& kernels, const Bf16Kernel& bf16) {
  GemmKernels both = kernels;
  both.bf16 = bf16;
  if (both.bf16.finish == nullptr) both.bf16.finish = kernels.f32.finish;
  return both;
}

const GemmKernels& kernels_of(InstructionSet set) {
  switch (set) {
#if defined(BONFIRE_HAVE_NEON)
    case InstructionSet::neon: return neon_kernels();
#endif
#if defined(BONFIRE_HAVE_NEONBF16)
    case InstructionSet::neonbf16: {
      static const GemmKernels kernels = with_bf16(neon_kernels(), gemm_kernel_neonbf16());
      return kernels;
    }
#endif
#if defined(BONFIRE_HAVE_AVX2)
    case InstructionSet::avx2: {
      static const GemmKernels avx2 = gemm_kernels_avx2();
      return avx2;
    }
#endif
#if defined(BONFIRE_HAVE_AVX512)
    case InstructionSet::avx512: return avx512_kernels();
#endif
#if defined(BONFIRE_HAVE_AVX512BF16)
    case InstructionSet::avx512bf16: {
      static const GemmKernels kernels = with_bf16(avx512_kernels(), gemm_kernel_avx512bf16());
      return kernels;
    }
#endif
#if defined(BONFIRE_HAVE_AMX)
    case InstructionSet::amx: {
      static const GemmKernels kernels = [] {
        GemmKernels both = with_bf16(avx512_kernels(), gemm_kernel_amx());
        both.split = gemm_split_kernel_amx();
        return both;
      }();
      return kernels;
    }
#endif
    default: break;
  }
  static const GemmKernels generic = gemm_kernels_generic();
  return generic;
}

}  // namespace

template <class Acc>
const GemmKernel<Acc>& gemm_kernel() {
  const GemmKernels& kernels = kernels_of(instruction_set());
  if constexpr (std::is_same_v<Acc, float>)
    return kernels.f32;
  else
    return kernels.f64;
}
template const GemmKernel<float>& gemm_kernel();
template const GemmKernel<double>& gemm_kernel();

const Bf16Kernel* bf16_kernel() {
  const Bf16Kernel& kernel = kernels_of(instruction_set()).bf16;
  return kernel.multiply ? &kernel : nullptr;
}

const SplitKernel* split_kernel() {
  const SplitKernel& kernel = kernels_of(instruction_set()).split;
  return kernel.multiply ? &kernel : nullptr;
}

}  // namespace bonfire::cpu
