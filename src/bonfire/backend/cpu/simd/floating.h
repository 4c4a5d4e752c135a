#pragma once
// What kernels over floating types share: the type they compute in, a choice by element type, and sums and maxima of a
// row in an order that vectorises and is always the same. Private to backend/cpu.

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <vector>

#include "bonfire/kernel/kernel.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls body(TypeTag<T>{}), which returns candidates, for f32, f64 and bf16; there are none for other types.
template <class Body>
std::vector<Candidate> for_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32: return body(TypeTag<float>{});
    case DType::f64: return body(TypeTag<double>{});
    case DType::bf16: return body(TypeTag<bfloat16>{});
    default: return {};
  }
}

inline constexpr int kLanes = 16;  // independent sums of a row

// Σ term(i) for i in [0, count).
template <class Acc, class Term>
Acc row_sum(int64_t count, const Term& term) {
  Acc lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] += term(i + l);
  for (int l = 0; i < count; ++i, ++l) lane[l] += term(i);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

// The largest term(i), −∞ for none. NaN counts as larger or smaller than all, by its sign.
template <class Acc, class Term>
Acc row_max(int64_t count, const Term& term) {
  // Compilers keep maxima of whole numbers in registers, but those of others in memory. Bits of numbers are in order
  // once those of negative ones are turned.
  using Bits = std::conditional_t<sizeof(Acc) == sizeof(int64_t), int64_t, int32_t>;
  constexpr Bits kSize = std::numeric_limits<Bits>::max();
  auto in_order = [](Bits bits) { return bits ^ ((bits >> (8 * sizeof bits - 1)) & kSize); };
  auto key = [&](int64_t i) { return in_order(std::bit_cast<Bits>(static_cast<Acc>(term(i)))); };
  Bits lane[kLanes];
  for (Bits& one : lane) one = in_order(std::bit_cast<Bits>(-std::numeric_limits<Acc>::infinity()));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] = std::max(lane[l], key(i + l));
  for (int l = 0; i < count; ++i, ++l) lane[l] = std::max(lane[l], key(i));
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] = std::max(lane[l], lane[l + width]);
  return std::bit_cast<Acc>(in_order(lane[0]));
}

}  // namespace bonfire::cpu
