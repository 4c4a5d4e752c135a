#include "bonfire/backend/cpu/winograd_kernel.h"

namespace bonfire::cpu {

namespace {

// Sets that differ only in what they do with bf16 share a table.
const WinogradKernels& kernels_of(InstructionSet set) {
  switch (set) {
#if defined(BONFIRE_HAVE_NEON)
    case InstructionSet::neon:
    case InstructionSet::neonbf16: {
      static const WinogradKernels neon = winograd_kernels_neon();
      return neon;
    }
#endif
#if defined(BONFIRE_HAVE_AVX2)
    case InstructionSet::avx2: {
      static const WinogradKernels avx2 = winograd_kernels_avx2();
      return avx2;
    }
#endif
#if defined(BONFIRE_HAVE_AVX512)
    case InstructionSet::avx512:
    case InstructionSet::avx512bf16:
    case InstructionSet::amx: {
      static const WinogradKernels avx512 = winograd_kernels_avx512();
      return avx512;
    }
#endif
    default: {
      static const WinogradKernels generic = winograd_kernels_generic();
      return generic;
    }
  }
}

}  // namespace

const WinogradKernel* winograd_kernel(int64_t tile, int64_t kernel) {
  const WinogradKernels& kernels = kernels_of(instruction_set());
  for (const WinogradKernel* one : {&kernels.f2x3, &kernels.f4x3, &kernels.f2x5})
    if (one->tile == tile && one->kernel == kernel) return one;
  return nullptr;
}

}  // namespace bonfire::cpu
