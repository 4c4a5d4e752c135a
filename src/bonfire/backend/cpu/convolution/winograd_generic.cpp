#include "bonfire/backend/cpu/convolution/winograd_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 16 registers of 16 bytes: 8 sums, 2 of the right operand, the rest for the left one and products.
struct Isa {
  using Scalar = float;
  static constexpr int bytes = 16;
  static constexpr int mr = 4;
  static constexpr int channel_rows = 4;
  static constexpr int vectors = 2;
  static constexpr bool a_by_lane = false;
};

}  // namespace

template <>
WinogradKernels make_table<WinogradKernels, VectorFamily::generic>() {
  return winograd_kernels<Isa>();
}

}  // namespace bonfire::cpu
