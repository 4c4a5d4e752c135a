#pragma once
// What kernels over floating types share: the type they compute in, a choice by element type, and sums and maxima of a
// row in an order that vectorises and is always the same. Private to backend/cpu.

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

// The largest term(i), −∞ for none. NaN is passed over.
template <class Acc, class Term>
Acc row_max(int64_t count, const Term& term) {
  Acc lane[kLanes];
  for (Acc& one : lane) one = -std::numeric_limits<Acc>::infinity();
  auto larger = [](Acc a, Acc b) { return b > a ? b : a; };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] = larger(lane[l], term(i + l));
  for (int l = 0; i < count; ++i, ++l) lane[l] = larger(lane[l], term(i));
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] = larger(lane[l], lane[l + width]);
  return lane[0];
}

}  // namespace bonfire::cpu
