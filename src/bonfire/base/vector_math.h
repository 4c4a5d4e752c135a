#pragma once
// Functions that compilers can put into vector loops (a call into libm they cannot).
//
// For float they have no branches and a relative error of about 1e-7; for other types they are libm's. NaN passes
// through.

#include <bit>
#include <cmath>
#include <cstdint>

namespace bonfire::base {

// condition ? a : b. Choosing by bits keeps g++ from turning a comparison round, into one that NEON does not have.
inline float choose(bool condition, float a, float b) {
#if defined(__aarch64__)
  const int32_t mask = -static_cast<int32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<int32_t>(a) & mask) | (std::bit_cast<int32_t>(b) & ~mask));
#else
  return condition ? a : b;
#endif
}

inline double exponential(double x) { return std::exp(x); }

// e^x = 2^n e^r with |r| ≤ ln 2 / 2 and a polynomial for e^r.
struct ExponentialParts {
  float of_rest;  // e^r
  int32_t n;

  explicit ExponentialParts(float x) {
    float shifted = x * 1.44269504F + 12582912.0F;  // 1.5 · 2^23: rounds to an integer, which stands in the lowest bits
    float whole = shifted - 12582912.0F;
    float r = x - whole * 0.693359375F + whole * 2.12194440e-4F;  // n ln 2 in two parts: the first product is exact
    float p = 1.3814467e-3F;
    p = p * r + 8.368781e-3F;
    p = p * r + 4.1668393e-2F;
    p = p * r + 1.666652e-1F;
    p = p * r + 4.9999994e-1F;
    of_rest = p * r * r + r + 1.0F;
    // Any bits may come of an x that is far too large or small: unsigned numbers may overflow.
    n = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(12582912.0F));
  }

  static float power_of_two(int32_t e) { return std::bit_cast<float>((static_cast<uint32_t>(e) + 127U) << 23); }
};

// 2^n is applied in two factors, so that results below the smallest normal number and infinity come out right.
inline float exponential(float x) {
  x = choose(x < -104.0F, -104.0F, x);
  x = choose(x > 89.0F, 89.0F, x);
  const ExponentialParts parts(x);
  int32_t half = parts.n >> 1;
  return parts.of_rest * ExponentialParts::power_of_two(half) * ExponentialParts::power_of_two(parts.n - half);
}

inline double quick_exponential(double x) { return std::exp(x); }

// For an x of at most 88, in fewer steps. Results below the smallest normal number, with which processors are slow, are
// zero.
inline float quick_exponential(float x) {
  const ExponentialParts parts(x);
  return choose(x < -87.0F, 0.0F, parts.of_rest * ExponentialParts::power_of_two(parts.n));
}

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

inline double hyperbolic_tangent(double x) { return std::tanh(x); }

// 1 − 2 / (e^2x + 1) loses digits near 0, where the series is used.
inline float hyperbolic_tangent(float x) {
  float far = 1.0F - 2.0F / (exponential(2.0F * x) + 1.0F);
  float s = x * x;
  float near = x + x * s * (-0.333333333F + s * (0.133333333F + s * (-0.0539682540F + s * 0.0218694885F)));
  return choose(s < 0.0625F, near, far);
}

inline double error_function(double x) { return std::erf(x); }

// erf(x) = 1 − e^−x² t P(t) with t = 1 / (1 + 0.62 x) for positive x, where P is a fit to e^x² erfc(x) / t; near 0,
// where that loses digits, x times a fit in x². `gaussian` is e^−x², which callers often need themselves.
inline float error_function(float x, float gaussian) {
  float s = x * x;
  float near = 4.81077e-3F;
  near = near * s - 2.679295e-2F;
  near = near * s + 1.128324e-1F;
  near = near * s - 3.7612623e-1F;
  near = (near * s + 1.12837917F) * x;
  float size = choose(x < 0.0F, -x, x);
  float t = 1.0F / (1.0F + 0.62F * size);
  float p = 1.4261231e-1F;
  p = p * t - 5.1195200e-1F;
  p = p * t + 4.8387462e-1F;
  p = p * t + 1.6752787e-1F;
  p = p * t + 3.6952886e-1F;
  p = p * t + 3.4848390e-1F;
  float far = 1.0F - gaussian * t * p;
  far = choose(x < 0.0F, -far, far);
  return choose(s < 0.176F, near, far);
}

inline float error_function(float x) { return error_function(x, quick_exponential(-x * x)); }

}  // namespace bonfire::base
