#pragma once
// Matrix products on raw memory: C = activation(A * B + bias (+ C)).
//
//   Gemm shape{.m = 64, .n = 10, .k = 320, .lda = 320, .ldb = 10, .ldc = 10};
//   std::vector<std::byte> workspace(gemm_workspace(shape, pool.size()));
//   gemm(shape, a, b, nullptr, c, workspace, pool);
//
// Sums are f32 for f32 and bf16 operands, f64 for f64. The same shape gives the same bits on every run and with any
// number of threads. Nothing is allocated: the caller brings the workspace.

#include <cstddef>
#include <cstdint>
#include <span>

#include "bonfire/backend/cpu/gemm/gemm_kernel.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

enum class BiasAlong : uint8_t { none, rows, columns };  // one number per row of C ([m]), or per column ([n])

// Matrices are row-major; ld is the distance between rows in memory, in elements.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;  // C is [m, n]
  DType input = DType::f32;     // of A and B: f32, bf16 or f64
  DType output = DType::f32;    // of C: as the input, or f32 or bf16 freely combined
  bool transpose_a = false;     // A in memory is [k, m] instead of [m, k]
  bool transpose_b = false;     // B in memory is [n, k] instead of [k, n]
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool accumulate = false;  // add to C instead of overwriting it
  BiasAlong bias = BiasAlong::none;
  DType bias_type = DType::f32;  // f64 for f64, otherwise f32 or bf16
  Activation activation = Activation::none;
  F32 f32 = F32::split;  // whichever is faster: that depends on the processor, and on what runs beside

  // Several products of this shape, the matrices of each that many elements after those of the one before (0: the same
  // matrix for all). The bias is the same for all.
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

// Whether F32::whole would be another product.
bool is_split(const Gemm& gemm);

// Bytes of workspace for a pool of `threads`.
size_t gemm_workspace(const Gemm& gemm, int threads);

// `bias` may be null when gemm.bias is none. C must not overlap A or B.
void gemm(const Gemm& gemm, const void* a, const void* b, const void* bias, void* c, std::span<std::byte> workspace,
          ThreadPool& pool);

}  // namespace bonfire::cpu
