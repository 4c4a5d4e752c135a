#include "bonfire/backend/cpu/gemm/gemm_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 16 registers of 16 bytes: 8 sums, 2 of B, the rest for A and products (the baseline of x86-64 has no fused
// multiply-add).
template <class T>
struct Isa {
  using Scalar = T;
  static constexpr int bytes = 16;
  static constexpr int mr = 4;
  static constexpr int vectors = 2;
  static constexpr bool a_by_lane = false;
  static constexpr int64_t kc = 512;
  static constexpr int64_t block_a = 192;
  static constexpr int64_t block_b = 256;
  static constexpr int64_t chunk_a = 192;
  static constexpr bool ask_ahead = true;
};

}  // namespace

template <>
GemmKernels make_table<GemmKernels, VectorFamily::generic>() {
  return {GemmTemplate<Isa<float>>::kernel(), GemmTemplate<Isa<double>>::kernel()};
}

}  // namespace bonfire::cpu
