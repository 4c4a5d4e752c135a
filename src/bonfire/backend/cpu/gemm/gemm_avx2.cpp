#include "bonfire/backend/cpu/gemm/gemm_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 16 registers: 12 sums, 2 of B, 2 for numbers of A.
template <class T>
struct Isa {
  using Scalar = T;
  static constexpr int bytes = 32;
  static constexpr int mr = 6;
  static constexpr int vectors = 2;
  static constexpr bool a_by_lane = false;
  static constexpr int64_t kc = 384;
  static constexpr int64_t block_a = 192;
  static constexpr int64_t block_b = 256;
  static constexpr int64_t chunk_a = 192;
  static constexpr bool ask_ahead = true;
};

}  // namespace

template <>
GemmKernels make_table<GemmKernels, VectorFamily::avx2>() {
  return {GemmTemplate<Isa<float>>::kernel(), GemmTemplate<Isa<double>>::kernel()};
}

}  // namespace bonfire::cpu
