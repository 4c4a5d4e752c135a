#include "bonfire/backend/cpu/gemm/gemm_kernel.h"

#include <type_traits>

namespace bonfire::cpu {

namespace {

// A table with products of bf16 added.
[[maybe_unused]] GemmKernels with_bf16(const GemmKernels& kernels, const Bf16Kernel& bf16) {
  GemmKernels both = kernels;
  both.bf16 = bf16;
  if (both.bf16.finish == nullptr) both.bf16.finish = kernels.f32.finish;
  return both;
}

// The table of instruction_set().
const GemmKernels& kernels() {
  switch (instruction_set()) {
#if defined(BONFIRE_HAVE_NEONBF16)
    case InstructionSet::neonbf16: {
      static const GemmKernels both = with_bf16(vector_table<GemmKernels>(), gemm_kernel_neonbf16());
      return both;
    }
#endif
#if defined(BONFIRE_HAVE_AVX512BF16)
    case InstructionSet::avx512bf16: {
      static const GemmKernels both = with_bf16(vector_table<GemmKernels>(), gemm_kernel_avx512bf16());
      return both;
    }
#endif
#if defined(BONFIRE_HAVE_AMX)
    case InstructionSet::amx: {
      static const GemmKernels all = [] {
        GemmKernels both = with_bf16(vector_table<GemmKernels>(), gemm_kernel_amx());
        both.split = gemm_split_kernel_amx();
        return both;
      }();
      return all;
    }
#endif
    default: return vector_table<GemmKernels>();
  }
}

}  // namespace

template <class Acc>
const GemmKernel<Acc>& gemm_kernel() {
  if constexpr (std::is_same_v<Acc, float>)
    return kernels().f32;
  else
    return kernels().f64;
}
template const GemmKernel<float>& gemm_kernel();
template const GemmKernel<double>& gemm_kernel();

const Bf16Kernel* bf16_kernel() {
  const Bf16Kernel& kernel = kernels().bf16;
  return kernel.multiply ? &kernel : nullptr;
}

const SplitKernel* split_kernel() {
  const SplitKernel& kernel = kernels().split;
  return kernel.multiply ? &kernel : nullptr;
}

}  // namespace bonfire::cpu
