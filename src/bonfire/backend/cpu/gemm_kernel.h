#pragma once
// The innermost loops of matrix products, one table of functions per instruction set. Private to backend/cpu.
//
// Operands are packed first. A panel holds `width` lanes (rows of A, columns of B) for a slice of K:
//   panel[k * width + lane], zero for lanes beyond the operand's edge.
// A panel of A is mr lanes wide, one of B nr lanes; a tile is their product, mr x nr numbers that stay in registers
// while k runs.

#include <cstdint>

#include "bonfire/backend/cpu/simd.h"

namespace bonfire::cpu {

enum class Activation : uint8_t { none, relu, gelu_tanh };

// Panels to pack: lane i, step k is source[lane_offset[i] + k_offset[k]]. Panel p holds lanes [p * width, p * width +
// width) and stands at panels + p * width * kc; lanes that are missing in the last one are filled with zeros.
template <class Source, class Acc>
struct PackPanels {
  const Source* source;
  const int64_t* lane_offset;  // [lanes]
  int64_t lanes;
  int width;
  const int64_t* k_offset;  // [kc]
  int64_t kc;
  bool over_read;  // reading up to one vector before and after any element is allowed
  Acc* panels;     // [lanes / width][kc, width]
};

// The end of a tile: out = activation(tile + bias (+ out)), with out in f32, f64 or bf16.
template <class Acc>
struct FinishTile {
  const Acc* tile;  // [rows, cols rounded up to whole vectors], rows tile_stride apart
  int64_t tile_stride;
  int rows, cols;
  void* out;                  // element (r, c) is out[row_offset[r] + col_offset[c]]
  bool out_bf16;              // out is bf16, otherwise Acc
  const int64_t* row_offset;  // [rows]
  const int64_t* col_offset;  // [cols], increasing
  bool add;                   // add to what out holds
  const Acc* row_bias;        // [rows] or null
  const Acc* col_bias;        // [cols rounded up to whole vectors] or null
  Activation activation;
};

template <class Acc>
struct GemmKernel {
  int mr, nr;
  int lanes;        // of one vector
  int64_t kc;       // longest slice of K: a panel of B stays in the first-level cache
  int64_t block_a;  // lanes of A whose slices stay in the second-level cache
  int64_t block_b;

  // c[r * c_stride + j] = sum over k of a[k * mr + r] * b[k * b_stride + j] (+ c when add), for r < rows and
  // j < cols rounded up to whole vectors.
  void (*multiply)(int rows, int cols, int64_t kc, const Acc* a, const Acc* b, int64_t b_stride, Acc* c,
                   int64_t c_stride, bool add);
  // out[r] = sum over k of rows[r * row_stride + k] * x[k], for r < count.
  void (*dot)(int64_t count, int64_t k, const Acc* rows, int64_t row_stride, const Acc* x, Acc* out);
  void (*finish)(const FinishTile<Acc>& tile);
  void (*pack)(const PackPanels<Acc, Acc>& panels);
  void (*pack_bf16)(const PackPanels<uint16_t, Acc>& panels);  // bits of bf16; null for f64
};

inline constexpr int64_t kMaxSliceK = 1024;  // >= kc of every kernel
inline constexpr int kMaxPanelWidth = 64;    // >= mr and nr of every kernel

struct GemmKernels {
  GemmKernel<float> f32;
  GemmKernel<double> f64;
};

GemmKernels gemm_kernels_generic();
GemmKernels gemm_kernels_neon();
GemmKernels gemm_kernels_avx2();
GemmKernels gemm_kernels_avx512();

// The table of instruction_set().
template <class Acc>
const GemmKernel<Acc>& gemm_kernel();

}  // namespace bonfire::cpu
