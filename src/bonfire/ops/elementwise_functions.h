#pragma once
// Every elementwise function, once, for all backends: the CPU compiles these templates, the CUDA backend pastes this
// file into the kernels it generates. T is the compute type (float, double or int64_t); storage types are converted on
// load and store. Comparisons give 0 or 1 in the compute type.

#if defined(__CUDACC_RTC__)
#define BONFIRE_MATH(f) ::f
#else
#include <cmath>
#include <cstdint>
#include <type_traits>
#define BONFIRE_MATH(f) std::f
#endif

// Loops over many floats call libm's functions, but on a CPU those of vector_math.h, which vectorise.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BONFIRE_DEVICE __host__ __device__
#define BONFIRE_ON_CPU(statement)
#else
#include "bonfire/base/vector_math.h"
#define BONFIRE_DEVICE
#define BONFIRE_ON_CPU(statement) \
  if constexpr (std::is_same_v<T, float>) statement
#endif

// X(name, arity): the position in this list is ElementwiseFunction's value.
#define BONFIRE_ELEMENTWISE_FUNCTIONS(X) \
  X(identity, 1)                         \
  X(negative, 1)                         \
  X(absolute, 1)                         \
  X(exp, 1)                              \
  X(log, 1)                              \
  X(sqrt, 1)                             \
  X(rsqrt, 1)                            \
  X(reciprocal, 1)                       \
  X(square, 1)                           \
  X(sin, 1)                              \
  X(cos, 1)                              \
  X(tanh, 1)                             \
  X(sigmoid, 1)                          \
  X(relu, 1)                             \
  X(gelu, 1)                             \
  X(gelu_tanh, 1)                        \
  X(silu, 1)                             \
  X(sign, 1)                             \
  X(erf, 1)                              \
  X(floor, 1)                            \
  X(logical_not, 1)                      \
  X(add, 2)                              \
  X(sub, 2)                              \
  X(mul, 2)                              \
  X(div, 2)                              \
  X(pow, 2)                              \
  X(maximum, 2)                          \
  X(minimum, 2)                          \
  X(equal, 2)                            \
  X(not_equal, 2)                        \
  X(less, 2)                             \
  X(less_equal, 2)                       \
  X(greater, 2)                          \
  X(greater_equal, 2)                    \
  X(tanh_gradient, 2)                    \
  X(sigmoid_gradient, 2)                 \
  X(relu_gradient, 2)                    \
  X(gelu_gradient, 2)                    \
  X(gelu_tanh_gradient, 2)               \
  X(silu_gradient, 2)                    \
  X(where, 3)                            \
  X(clamp, 3)                            \
  X(multiply_add, 3)

namespace bonfire {

enum class ElementwiseFunction : int {
#define BONFIRE_NAME(name, arity) name,
  BONFIRE_ELEMENTWISE_FUNCTIONS(BONFIRE_NAME)
#undef BONFIRE_NAME
      count
};

namespace elementwise {
// NOLINTBEGIN(readability-identifier-naming): each is called as its op
template <class T>
BONFIRE_DEVICE T exp_of(T x) {
  BONFIRE_ON_CPU(return base::exponential(x);)
  return T(BONFIRE_MATH(exp)(x));
}
template <class T>
BONFIRE_DEVICE T exp_of_negative(T x) {
  BONFIRE_ON_CPU(return base::quick_exponential(x);)
  return T(BONFIRE_MATH(exp)(x));
}
template <class T>
BONFIRE_DEVICE T tanh_of(T x) {
  BONFIRE_ON_CPU(return base::hyperbolic_tangent(x);)
  return T(BONFIRE_MATH(tanh)(x));
}
template <class T>
BONFIRE_DEVICE T erf_of(T x, [[maybe_unused]] T gaussian) {  // for callers that have e^−x²
  BONFIRE_ON_CPU(return base::error_function(x, gaussian);)
  return T(BONFIRE_MATH(erf)(x));
}
template <class T>
BONFIRE_DEVICE T erf_of(T x) {
  return erf_of(x, exp_of_negative(-x * x));
}

template <class T>
struct identity {
  BONFIRE_DEVICE static T call(T x) { return x; }
};
template <class T>
struct negative {
  BONFIRE_DEVICE static T call(T x) { return -x; }
};
template <class T>
struct absolute {
  BONFIRE_DEVICE static T call(T x) { return x < T(0) ? -x : x; }
};
template <class T>
struct exp {
  BONFIRE_DEVICE static T call(T x) { return exp_of(x); }
};
template <class T>
struct log {
  BONFIRE_DEVICE static T call(T x) { return T(BONFIRE_MATH(log)(x)); }
};
template <class T>
struct sqrt {
  BONFIRE_DEVICE static T call(T x) { return T(BONFIRE_MATH(sqrt)(x)); }
};
template <class T>
struct rsqrt {
  BONFIRE_DEVICE static T call(T x) { return T(1) / T(BONFIRE_MATH(sqrt)(x)); }
};
template <class T>
struct reciprocal {
  BONFIRE_DEVICE static T call(T x) { return T(1) / x; }
};
template <class T>
struct square {
  BONFIRE_DEVICE static T call(T x) { return x * x; }
};
template <class T>
struct sin {
  BONFIRE_DEVICE static T call(T x) { return T(BONFIRE_MATH(sin)(x)); }
};
template <class T>
struct cos {
  BONFIRE_DEVICE static T call(T x) { return T(BONFIRE_MATH(cos)(x)); }
};
template <class T>
struct tanh {
  BONFIRE_DEVICE static T call(T x) { return tanh_of(x); }
};
template <class T>
struct erf {
  BONFIRE_DEVICE static T call(T x) { return erf_of(x); }
};
template <class T>
struct floor {
  BONFIRE_DEVICE static T call(T x) { return T(BONFIRE_MATH(floor)(x)); }
};
template <class T>
struct sigmoid {
  BONFIRE_DEVICE static T call(T x) { return T(1) / (T(1) + exp_of(-x)); }
};
// NaN passes through, as in PyTorch.
template <class T>
struct relu {
  BONFIRE_DEVICE static T call(T x) { return x < T(0) ? T(0) : x; }
};
template <class T>
struct gelu {  // x Φ(x)
  BONFIRE_DEVICE static T call(T x) { return T(0.5) * x * (T(1) + erf_of(x * T(0.70710678118654752440))); }
};
template <class T>
struct gelu_tanh {
  BONFIRE_DEVICE static T call(T x) {
    T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T(1) + tanh_of(inner));
  }
};
template <class T>
struct silu {
  BONFIRE_DEVICE static T call(T x) { return x * sigmoid<T>::call(x); }
};
template <class T>
struct sign {
  BONFIRE_DEVICE static T call(T x) { return T(x > T(0)) - T(x < T(0)); }
};
template <class T>
struct logical_not {
  BONFIRE_DEVICE static T call(T x) { return T(x == T(0)); }
};
template <class T>
struct add {
  BONFIRE_DEVICE static T call(T x, T y) { return x + y; }
};
template <class T>
struct sub {
  BONFIRE_DEVICE static T call(T x, T y) { return x - y; }
};
template <class T>
struct mul {
  BONFIRE_DEVICE static T call(T x, T y) { return x * y; }
};
template <class T>
struct div {
  BONFIRE_DEVICE static T call(T x, T y) { return x / y; }
};
template <class T>
struct pow {
  BONFIRE_DEVICE static T call(T x, T y) { return T(BONFIRE_MATH(pow)(x, y)); }
};
template <class T>
struct maximum {
  BONFIRE_DEVICE static T call(T x, T y) { return x != x ? x : (x < y || y != y ? y : x); }
};
template <class T>
struct minimum {
  BONFIRE_DEVICE static T call(T x, T y) { return x != x ? x : (y < x || y != y ? y : x); }
};
template <class T>
struct equal {
  BONFIRE_DEVICE static T call(T x, T y) { return T(x == y); }
};
template <class T>
struct not_equal {
  BONFIRE_DEVICE static T call(T x, T y) { return T(x != y); }
};
template <class T>
struct less {
  BONFIRE_DEVICE static T call(T x, T y) { return T(x < y); }
};
template <class T>
struct less_equal {
  BONFIRE_DEVICE static T call(T x, T y) { return T(x <= y); }
};
template <class T>
struct greater {
  BONFIRE_DEVICE static T call(T x, T y) { return T(x > y); }
};
template <class T>
struct greater_equal {
  BONFIRE_DEVICE static T call(T x, T y) { return T(x >= y); }
};
// Gradients take (dy, y) where the output suffices, (dy, x) otherwise.
template <class T>
struct tanh_gradient {
  BONFIRE_DEVICE static T call(T dy, T y) { return dy * (T(1) - y * y); }
};
template <class T>
struct sigmoid_gradient {
  BONFIRE_DEVICE static T call(T dy, T y) { return dy * y * (T(1) - y); }
};
template <class T>
struct relu_gradient {
  BONFIRE_DEVICE static T call(T dy, T y) { return y > T(0) ? dy : T(0); }
};
template <class T>
struct gelu_gradient {  // dy (Φ(x) + x φ(x))
  BONFIRE_DEVICE static T call(T dy, T x) {
    T gaussian = exp_of_negative(T(-0.5) * x * x);
    T cdf = T(0.5) * (T(1) + erf_of(x * T(0.70710678118654752440), gaussian));
    return dy * (cdf + x * (T(0.39894228040143267794) * gaussian));
  }
};
template <class T>
struct gelu_tanh_gradient {
  BONFIRE_DEVICE static T call(T dy, T x) {
    T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    T slope = T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
    T t = tanh_of(inner);
    return dy * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * slope);
  }
};
template <class T>
struct silu_gradient {
  BONFIRE_DEVICE static T call(T dy, T x) {
    T s = sigmoid<T>::call(x);
    return dy * (s + x * s * (T(1) - s));
  }
};
template <class T>
struct where {
  BONFIRE_DEVICE static T call(T condition, T x, T y) { return condition != T(0) ? x : y; }
};
template <class T>
struct clamp {
  BONFIRE_DEVICE static T call(T x, T low, T high) { return x < low ? low : (x > high ? high : x); }
};
template <class T>
struct multiply_add {
  BONFIRE_DEVICE static T call(T x, T y, T z) { return x * y + z; }
};
// NOLINTEND(readability-identifier-naming)
}  // namespace elementwise
}  // namespace bonfire
