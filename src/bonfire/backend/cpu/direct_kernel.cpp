#include "bonfire/backend/cpu/direct_kernel.h"

namespace bonfire::cpu {

namespace {

// Sets that differ only in what they do with bf16 share a table.
const DirectKernel& kernel_of(InstructionSet set) {
  switch (set) {
#if defined(BONFIRE_HAVE_NEON)
    case InstructionSet::neon:
    case InstructionSet::neonbf16: {
      static const DirectKernel neon = direct_kernel_neon();
      return neon;
    }
#endif
#if defined(BONFIRE_HAVE_AVX2)
    case InstructionSet::avx2: {
      static const DirectKernel avx2 = direct_kernel_avx2();
      return avx2;
    }
#endif
#if defined(BONFIRE_HAVE_AVX512)
    case InstructionSet::avx512:
    case InstructionSet::avx512bf16:
    case InstructionSet::amx: {
      static const DirectKernel avx512 = direct_kernel_avx512();
      return avx512;
    }
#endif
    default: {
      static const DirectKernel generic = direct_kernel_generic();
      return generic;
    }
  }
}

}  // namespace

const DirectKernel& direct_kernel() { return kernel_of(instruction_set()); }

}  // namespace bonfire::cpu
