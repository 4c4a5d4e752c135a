#pragma once
// Element types on the device: what they are computed in, and packs of them that are loaded and stored at once.

#include <cuda_bf16.h>

#include <cstdint>

#include "bonfire/base/error.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cuda {

// What arithmetic and sums use, whatever the storage.
template <class T>
using Compute = float;

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

// Elements of T that are loaded at once along `extent`: 16 bytes' worth, 8 bytes' worth, or one.
template <class T>
inline int pack_width(int64_t extent) {
  constexpr int kFull = 16 / static_cast<int>(sizeof(T));
  if (extent % kFull == 0) return kFull;
  return kFull > 2 && extent % (kFull / 2) == 0 ? kFull / 2 : 1;
}

// The types that this backend's own kernels compute with. A list of candidates returns none for others.
inline bool has_kernels(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

// Calls body(TypeTag<T>{}) with the device's type of such a `dtype`.
template <class Body>
decltype(auto) dispatch_floating(DType dtype, Body&& body) {
  BONFIRE_CHECK(has_kernels(dtype), "no kernels for {}", name_of(dtype));
  if (dtype == DType::bf16) return body(TypeTag<__nv_bfloat16>{});
  return body(TypeTag<float>{});
}

// Calls body(std::integral_constant<int, n>{}) with n = `width`, one that pack_width<T> gives.
template <class T, class Body>
decltype(auto) dispatch_width(int width, Body&& body) {
  constexpr int kFull = 16 / static_cast<int>(sizeof(T));
  if (width == kFull) return body(std::integral_constant<int, kFull>{});
  if constexpr (kFull > 2)
    if (width == kFull / 2) return body(std::integral_constant<int, kFull / 2>{});
  return body(std::integral_constant<int, 1>{});
}

inline unsigned blocks_for(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

}  // namespace bonfire::cuda
