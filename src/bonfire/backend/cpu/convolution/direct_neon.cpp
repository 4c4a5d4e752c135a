#include "bonfire/backend/cpu/convolution/direct_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 32 registers: 20 sums, 4 of weights, the rest for pixels.
struct Isa {
  using Scalar = float;
  static constexpr int bytes = 16;
  static constexpr int mr = 5;
  static constexpr int vectors = 4;
};

}  // namespace

template <>
DirectKernel make_table<DirectKernel, VectorFamily::neon>() {
  return DirectTemplate<Isa>::kernel();
}

}  // namespace bonfire::cpu
