#include "bonfire/backend/cpu/convolution/winograd_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 16 registers: 12 sums, 2 of the right operand, 2 for numbers of the left one.
struct Isa {
  using Scalar = float;
  static constexpr int bytes = 32;
  static constexpr int mr = 6;
  static constexpr int channel_rows = 4;
  static constexpr int vectors = 2;
  static constexpr bool a_by_lane = false;
};

}  // namespace

template <>
WinogradKernels make_table<WinogradKernels, VectorFamily::avx2>() {
  return winograd_kernels<Isa>();
}

}  // namespace bonfire::cpu
