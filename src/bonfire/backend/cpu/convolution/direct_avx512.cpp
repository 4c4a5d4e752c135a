#include "bonfire/backend/cpu/convolution/direct_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 32 registers: 28 sums, 2 of weights, 2 for pixels.
struct Isa {
  using Scalar = float;
  static constexpr int bytes = 64;
  static constexpr int mr = 14;
  static constexpr int vectors = 2;
};

}  // namespace

template <>
DirectKernel make_table<DirectKernel, VectorFamily::avx512>() {
  return DirectTemplate<Isa>::kernel();
}

}  // namespace bonfire::cpu
