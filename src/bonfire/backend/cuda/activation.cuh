#pragma once
// Activations inside fused kernels. `function` is an ElementwiseFunction or -1 for none; with kAny false only -1 and
// relu are compiled in, which is what most nets need and leaves more registers.

#include "bonfire/ops/elementwise_functions.h"

namespace bonfire::cuda {

inline bool is_plain_activation(int64_t function) {
  return function == -1 || function == static_cast<int64_t>(ElementwiseFunction::relu);
}

template <bool kAny, class C>
__device__ inline C activate(int function, C z) {
  namespace fn = elementwise;
  if (function == static_cast<int>(ElementwiseFunction::relu)) return fn::relu<C>::call(z);
  if constexpr (kAny) {
    switch (static_cast<ElementwiseFunction>(function)) {
      case ElementwiseFunction::gelu: return fn::gelu<C>::call(z);
      case ElementwiseFunction::gelu_tanh: return fn::gelu_tanh<C>::call(z);
      case ElementwiseFunction::tanh: return fn::tanh<C>::call(z);
      case ElementwiseFunction::sigmoid: return fn::sigmoid<C>::call(z);
      case ElementwiseFunction::silu: return fn::silu<C>::call(z);
      default: break;
    }
  }
  return z;
}

// dz from dy and the activation's input z.
template <bool kAny, class C>
__device__ inline C gradient_from_input(int function, C dy, C z) {
  namespace fn = elementwise;
  if (function == static_cast<int>(ElementwiseFunction::relu)) return fn::relu_gradient<C>::call(dy, z);
  if constexpr (kAny) {
    switch (static_cast<ElementwiseFunction>(function)) {
      case ElementwiseFunction::gelu: return fn::gelu_gradient<C>::call(dy, z);
      case ElementwiseFunction::gelu_tanh: return fn::gelu_tanh_gradient<C>::call(dy, z);
      case ElementwiseFunction::tanh: return fn::tanh_gradient<C>::call(dy, fn::tanh<C>::call(z));
      case ElementwiseFunction::sigmoid: return fn::sigmoid_gradient<C>::call(dy, fn::sigmoid<C>::call(z));
      case ElementwiseFunction::silu: return fn::silu_gradient<C>::call(dy, z);
      default: break;
    }
  }
  return dy;
}

// dz from dy and the activation's result y, for those that can be had from it.
template <bool kAny, class C>
__device__ inline C gradient_from_output(int function, C dy, C y) {
  namespace fn = elementwise;
  if (function == static_cast<int>(ElementwiseFunction::relu)) return fn::relu_gradient<C>::call(dy, y);
  if constexpr (kAny) {
    if (function == static_cast<int>(ElementwiseFunction::tanh)) return fn::tanh_gradient<C>::call(dy, y);
    if (function == static_cast<int>(ElementwiseFunction::sigmoid)) return fn::sigmoid_gradient<C>::call(dy, y);
  }
  return dy;
}

}  // namespace bonfire::cuda
