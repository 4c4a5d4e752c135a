#include "bonfire/backend/cpu/gemm/gemm_avx512_template.h"
#include "bonfire/backend/cpu/gemm/gemm_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 32 registers: 28 sums, 2 of B, 2 for numbers of A.
template <class T>
struct Isa : MaskedRows<Isa<T>, T> {
  using Scalar = T;
  static constexpr int bytes = 64;
  static constexpr int mr = 14;
  static constexpr int vectors = 2;
  static constexpr bool a_by_lane = false;
  static constexpr int64_t kc = 352;
  static constexpr int64_t block_a = 224;
  static constexpr int64_t block_b = 256;
  static constexpr int64_t chunk_a = 56;
  static constexpr bool ask_ahead = false;
};

}  // namespace

template <>
GemmKernels make_table<GemmKernels, VectorFamily::avx512>() {
  return {GemmTemplate<Isa<float>>::kernel(), GemmTemplate<Isa<double>>::kernel()};
}

}  // namespace bonfire::cpu
