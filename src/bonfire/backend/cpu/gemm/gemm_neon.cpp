#include "bonfire/backend/cpu/gemm/gemm_kernel_template.h"
#include "bonfire/backend/cpu/gemm/gemm_neon_template.h"

namespace bonfire::cpu {

namespace {

// 32 registers: 24 sums, 3 of B, 2 of A that are multiplied lane by lane.
template <class T>
struct Isa : Bf16OnNeon<Isa<T>> {
  using Scalar = T;
  static constexpr int bytes = 16;
  static constexpr int mr = 8;
  static constexpr int vectors = 3;
  static constexpr bool a_by_lane = true;
  [[gnu::always_inline]] static void hold(auto& vector) { asm("" : "+w"(vector)); }
  static constexpr int64_t kc = 512;
  static constexpr int64_t block_a = 192;
  static constexpr int64_t block_b = 240;
  static constexpr int64_t chunk_a = 192;
  static constexpr bool ask_ahead = true;
};

}  // namespace

template <>
GemmKernels make_table<GemmKernels, VectorFamily::neon>() {
  return {GemmTemplate<Isa<float>>::kernel(), GemmTemplate<Isa<double>>::kernel()};
}

}  // namespace bonfire::cpu
