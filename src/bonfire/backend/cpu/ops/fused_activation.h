#pragma once
// The attribute `activation` of fused ops, as something kernels can inline. Two forms are compiled into loops of their
// own, because almost every network uses them; the others share one that decides per element.

#include <cstdint>

#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise_functions.h"

namespace bonfire::cpu {

struct NoActivation {
  template <class Acc>
  Acc operator()(Acc z) const {
    return z;
  }
  template <class Acc>
  Acc gradient(Acc dy, Acc /*z*/) const {
    return dy;
  }
  template <class Acc>
  Acc gradient_from_output(Acc dy, Acc /*y*/) const {
    return dy;
  }
};

struct ReluActivation {
  template <class Acc>
  Acc operator()(Acc z) const {
    return elementwise::relu<Acc>::call(z);
  }
  template <class Acc>
  Acc gradient(Acc dy, Acc z) const {
    return elementwise::relu_gradient<Acc>::call(dy, z);
  }
  template <class Acc>
  Acc gradient_from_output(Acc dy, Acc y) const {
    return elementwise::relu_gradient<Acc>::call(dy, y);
  }
};

// Not inlined: its loops gain nothing from it, and there are many.
struct AnyActivation {
  using F = ElementwiseFunction;
  F function;

  template <class Acc>
  [[gnu::noinline]] Acc operator()(Acc z) const {
    switch (function) {
      case F::gelu: return elementwise::gelu<Acc>::call(z);
      case F::gelu_tanh: return elementwise::gelu_tanh<Acc>::call(z);
      case F::tanh: return elementwise::tanh<Acc>::call(z);
      case F::sigmoid: return elementwise::sigmoid<Acc>::call(z);
      default: return elementwise::silu<Acc>::call(z);
    }
  }
  template <class Acc>
  [[gnu::noinline]] Acc gradient(Acc dy, Acc z) const {
    switch (function) {
      case F::gelu: return elementwise::gelu_gradient<Acc>::call(dy, z);
      case F::gelu_tanh: return elementwise::gelu_tanh_gradient<Acc>::call(dy, z);
      case F::silu: return elementwise::silu_gradient<Acc>::call(dy, z);
      default: return gradient_from_output(dy, (*this)(z));
    }
  }
  template <class Acc>
  [[gnu::noinline]] Acc gradient_from_output(Acc dy, Acc y) const {
    if (function == F::tanh) return elementwise::tanh_gradient<Acc>::call(dy, y);
    return elementwise::sigmoid_gradient<Acc>::call(dy, y);
  }
};

// Calls body with one of the types above.
template <class Body>
decltype(auto) with_activation(int64_t activation, Body&& body) {
  if (activation == -1) return body(NoActivation{});
  if (activation == static_cast<int64_t>(ElementwiseFunction::relu)) return body(ReluActivation{});
  return body(AnyActivation{static_cast<ElementwiseFunction>(activation)});
}

}  // namespace bonfire::cpu
