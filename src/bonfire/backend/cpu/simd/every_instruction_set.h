#pragma once
// Kernels that are plain loops, compiled once for each instruction set. A file of backend/cpu is compiled for the
// baseline and again for each set beyond it, everything in an unnamed namespace, if it ends in a list of what it has,
// which CMake looks for when it configures:
//
//   BONFIRE_CPU_KERNELS(layer_norm, {"layer_norm", forward_candidates}, {"layer_norm_gradient", backward_candidates})
//
// Candidates come from the best set that the processor has; where that one has none, from the baseline. Functions of
// headers that such files share stand in namespace bonfire::cpu::inline BONFIRE_COMPILED_SET, so that the linker does
// not take those of one set for all.

#include <span>
#include <vector>

#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

struct OpKernels {
  const char* op;
  std::vector<Candidate> (*candidates)(const KernelRequest&);
};

using KernelTable = std::span<const OpKernels> (*)();

// The same table for each set; null where it was not compiled. Returns true.
bool register_for_every_set(KernelTable generic, KernelTable avx2, KernelTable avx512);

}  // namespace bonfire::cpu

#if !defined(BONFIRE_COMPILED_SET)
#define BONFIRE_COMPILED_SET generic
#endif

namespace bonfire::cpu {
inline namespace BONFIRE_COMPILED_SET {

#if defined(BONFIRE_COMPILED_FURTHER)
// What tensors are computed in is compiled for every set, the other types for the baseline alone.
constexpr bool has_type_in_set(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

// Calls body(TypeTag<T>{}) with a type that this set has.
template <class Body>
decltype(auto) dispatch_in_set(DType dtype, Body&& body) {
  if (dtype == DType::f32) return body(TypeTag<float>{});
  return body(TypeTag<bfloat16>{});
}
#else
constexpr bool has_type_in_set(DType) { return true; }

template <class Body>
decltype(auto) dispatch_in_set(DType dtype, Body&& body) {
  return dispatch(dtype, std::forward<Body>(body));
}
#endif

}  // namespace BONFIRE_COMPILED_SET
}  // namespace bonfire::cpu

#define BONFIRE_TABLE_JOIN(family, set) family##_kernels_##set
#define BONFIRE_TABLE(family, set) BONFIRE_TABLE_JOIN(family, set)

#define BONFIRE_DEFINE_TABLE(family, ...)                                    \
  std::span<const OpKernels> BONFIRE_TABLE(family, BONFIRE_COMPILED_SET)();  \
  std::span<const OpKernels> BONFIRE_TABLE(family, BONFIRE_COMPILED_SET)() { \
    static constexpr OpKernels table[] = {__VA_ARGS__};                      \
    return table;                                                            \
  }

#if defined(BONFIRE_COMPILED_FURTHER)  // for a set beyond the baseline: no global constructor, no registration
#define BONFIRE_CPU_KERNELS(family, ...) BONFIRE_DEFINE_TABLE(family, __VA_ARGS__)
#elif defined(BONFIRE_EVERY_SET_X86)
#define BONFIRE_CPU_KERNELS(family, ...)                                                                \
  BONFIRE_DEFINE_TABLE(family, __VA_ARGS__)                                                             \
  std::span<const OpKernels> family##_kernels_avx2();                                                   \
  std::span<const OpKernels> family##_kernels_avx512();                                                 \
  namespace {                                                                                           \
  const bool registered =                                                                               \
      register_for_every_set(family##_kernels_generic, family##_kernels_avx2, family##_kernels_avx512); \
  }
#else
#define BONFIRE_CPU_KERNELS(family, ...)                                                      \
  BONFIRE_DEFINE_TABLE(family, __VA_ARGS__)                                                   \
  namespace {                                                                                 \
  const bool registered = register_for_every_set(family##_kernels_generic, nullptr, nullptr); \
  }
#endif
