#include "bonfire/backend/cpu/convolution/direct_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 16 registers: 12 sums, 2 of weights, 2 for pixels.
struct Isa {
  using Scalar = float;
  static constexpr int bytes = 32;
  static constexpr int mr = 6;
  static constexpr int vectors = 2;
};

}  // namespace

template <>
DirectKernel make_table<DirectKernel, VectorFamily::avx2>() {
  return DirectTemplate<Isa>::kernel();
}

}  // namespace bonfire::cpu
