#include "bonfire/backend/cpu/winograd_kernel.h"

#include "bonfire/base/error.h"

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

const WinogradKernel& winograd_kernel(int tile) {
  BONFIRE_CHECK(tile == 2 || tile == 4, "no Winograd algorithm for tiles of {}", tile);
  const WinogradKernels& kernels = kernels_of(instruction_set());
  return tile == 2 ? kernels.tile2 : kernels.tile4;
}

}  // namespace bonfire::cpu
