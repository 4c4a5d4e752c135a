#include "bonfire/backend/cpu/convolution/winograd_kernel_template.h"
#include "bonfire/backend/cpu/gemm/gemm_neon_template.h"

namespace bonfire::cpu {

namespace {

// 32 registers: 20 sums, 4 of the right operand, 5 of the left one that are multiplied lane by lane.
struct Isa : Bf16OnNeon<Isa> {
  using Scalar = float;
  static constexpr int bytes = 16;
  static constexpr int mr = 5;
  static constexpr int channel_rows = 4;
  static constexpr int vectors = 4;
  static constexpr bool a_by_lane = true;
  [[gnu::always_inline]] static void hold(auto& vector) { asm("" : "+w"(vector)); }
};

}  // namespace

template <>
WinogradKernels make_table<WinogradKernels, VectorFamily::neon>() {
  return winograd_kernels<Isa>();
}

}  // namespace bonfire::cpu
