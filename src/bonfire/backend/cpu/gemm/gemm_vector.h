#pragma once
// Products of a matrix with a few vectors, as dot products. Private to backend/cpu.

#include <cstddef>
#include <cstdint>
#include <span>

#include "bonfire/backend/cpu/gemm/gemm_kernel.h"
#include "bonfire/base/thread_pool.h"

namespace bonfire::cpu {

inline constexpr int64_t kMostVectors = 3;  // more of them are faster as a matrix

// out(v, r) = activation(sum over k of rows(r, k) * x(v, k) + bias (+ out)), for r < count and v < vectors.
template <class Acc>
struct VectorProduct {
  int64_t k = 0;
  int64_t count = 0;
  const Acc* rows = nullptr;  // [count, k], row_stride apart
  int64_t row_stride = 0;
  int64_t vectors = 0;
  const Acc* x = nullptr;  // [vectors, k]: vectors x_stride apart, their elements x_step
  int64_t x_stride = 0, x_step = 0;
  void* out = nullptr;  // [vectors, count]: out_stride and out_step apart
  bool out_bf16 = false;
  int64_t out_stride = 0, out_step = 0;
  bool add = false;
  const Acc* row_bias = nullptr;  // [count]
  const Acc* x_bias = nullptr;    // [vectors]
  Activation activation = Activation::none;
};

template <class Acc>
size_t vector_workspace(const VectorProduct<Acc>& product);

// With a null pool the calling thread works alone.
template <class Acc>
void multiply(const VectorProduct<Acc>& product, std::span<std::byte> workspace, ThreadPool* pool);

}  // namespace bonfire::cpu
