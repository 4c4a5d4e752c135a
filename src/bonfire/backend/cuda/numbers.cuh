#pragma once
// Element types on the device: what they are computed in, and packs of them that are loaded and stored at once.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "bonfire/base/error.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cuda {

// What arithmetic and sums use: double for double, otherwise float.
template <class T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

template <class T>
__device__ inline Compute<T> load(T x) {
  return static_cast<Compute<T>>(x);
}
template <class T>
__device__ inline T store(Compute<T> x) {
  return static_cast<T>(x);
}
template <>
__device__ inline float load<__nv_bfloat16>(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <>
__device__ inline __nv_bfloat16 store<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline float load<__half>(__half x) {
  return __half2float(x);
}
template <>
__device__ inline __half store<__half>(float x) {
  return __float2half_rn(x);
}

template <class T, int n>
struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Pack {
  T item[n];
};

template <int n, class T>
__device__ inline Pack<T, n> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, n>*>(from);
}
template <class T, int n>
__device__ inline void store_pack(T* to, const Pack<T, n>& pack) {
  *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

// The widest pack of elements of T that fits `extent`, at most 16 bytes.
template <class T>
inline int pack_width(int64_t extent) {
  int width = 16 / static_cast<int>(sizeof(T));
  while (width > 1 && extent % width != 0) width /= 2;
  return width;
}

// Calls body(TypeTag<T>{}) with the device's type of a floating `dtype`.
template <class Body>
decltype(auto) dispatch_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64: return body(TypeTag<double>{});
    case DType::bf16: return body(TypeTag<__nv_bfloat16>{});
    case DType::f16: return body(TypeTag<__half>{});
    default: BONFIRE_CHECK(dtype == DType::f32, "{} is not floating", name_of(dtype));
  }
  return body(TypeTag<float>{});
}

// Calls body(std::integral_constant<int, n>{}) with n = 8, 4, 2 or 1, the width of packs of T along `extent`.
template <class T, class Body>
decltype(auto) dispatch_width(int64_t extent, Body&& body) {
  int width = pack_width<T>(extent);
  if constexpr (sizeof(T) <= 2)
    if (width == 8) return body(std::integral_constant<int, 8>{});
  if constexpr (sizeof(T) <= 4)
    if (width == 4) return body(std::integral_constant<int, 4>{});
  if (width == 2) return body(std::integral_constant<int, 2>{});
  return body(std::integral_constant<int, 1>{});
}

inline unsigned blocks_for(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

}  // namespace bonfire::cuda
