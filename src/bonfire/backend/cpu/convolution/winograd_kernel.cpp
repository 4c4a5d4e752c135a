#include "bonfire/backend/cpu/convolution/winograd_kernel.h"

namespace bonfire::cpu {

const WinogradKernel* winograd_kernel(int64_t tile, int64_t kernel) {
  const WinogradKernels& kernels = vector_table<WinogradKernels>();
  for (const WinogradKernel* one : {&kernels.f2x3, &kernels.f4x3, &kernels.f2x5})
    if (one->tile == tile && one->kernel == kernel) return one;
  return nullptr;
}

}  // namespace bonfire::cpu
