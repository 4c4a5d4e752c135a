#include "bonfire/backend/cpu/convolution/direct_kernel_template.h"

namespace bonfire::cpu {

namespace {

// 16 registers of 16 bytes: 8 sums, 2 of weights, the rest for pixels and products.
struct Isa {
  using Scalar = float;
  static constexpr int bytes = 16;
  static constexpr int mr = 4;
  static constexpr int vectors = 2;
};

}  // namespace

template <>
DirectKernel make_table<DirectKernel, VectorFamily::generic>() {
  return DirectTemplate<Isa>::kernel();
}

}  // namespace bonfire::cpu
