#pragma once
// The innermost loops of matrix products, one table of functions per instruction set. Private to backend/cpu.
//
// Operands are packed first. A panel holds `width` lanes (rows of A, columns of B) for a slice of K:
//   panel[k * width + lane], zero for lanes beyond the operand's edge.
// A panel of A is mr lanes wide, one of B nr lanes; a tile is their product, mr x nr numbers that stay in registers
// while k runs.
//
// Instructions that multiply bf16 and add in f32 want neighbouring steps of K side by side. Their panels are
//   panel[k / group][lane][k % group], zero for steps beyond the end of K.
//
// The same instructions multiply f32, where they are that much faster. A number of f32 is exactly the sum of three of
// bf16, x = x0 + x1 + x2, each 2^8 times smaller than the one before; six products, those of x0 y0, x0 y1, x1 y0, x1
// y1, x0 y2 and x2 y0, leave out less than f32 rounds away. Panels then hold the three parts of every group of 32 steps
// one after the other (PanelLayout::parts), step i of a group beside step i + 16. Numbers below 2^-110 lose accuracy,
// and infinities become NaN.

#include <cstdint>

#include "bonfire/backend/cpu/simd/vector_tables.h"

namespace bonfire::cpu {

enum class Activation : uint8_t { none, relu, gelu_tanh };
enum class F32 : uint8_t { split, whole };  // as parts of bf16 where there are instructions for it, or as it is
inline constexpr double kSplitError = 2;    // Candidate::error of such products

// How an operand is packed.
struct PanelLayout {
  int width;         // lanes of a panel
  int group = 1;     // steps of K side by side
  int multiple = 1;  // a slice of K is filled up with zeros to a multiple of this
  int parts = 1;     // numbers packed for one of the operand

  PanelLayout(int panel_width) : width(panel_width) {}
  PanelLayout(int panel_width, int k_group, int k_multiple, int number_parts)
      : width(panel_width), group(k_group), multiple(k_multiple), parts(number_parts) {}
  int64_t steps(int64_t kc) const { return (kc + multiple - 1) / multiple * multiple * parts; }  // numbers of a lane
};

// Panels to pack: lane i, step k is source[lane_offset[i] + k_offset[k]]. Panel p holds lanes [p * width, p * width +
// width) and stands at panels + p * width * layout.steps(kc); lanes that are missing in the last one are filled with
// zeros.
template <class Source, class Packed>
struct PackPanels {
  const Source* source;
  const int64_t* lane_offset;  // [lanes]
  int64_t lanes;
  PanelLayout layout;
  const int64_t* k_offset;  // [kc]
  int64_t kc;
  bool over_read;  // reading up to one vector before and after any element is allowed
  Packed* panels;  // [lanes / width][steps(kc), width]
};

// The end of a tile: out = activation(tile + bias + residual (+ out)), with out in f32, f64 or bf16.
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
  const void* residual;       // as out, or null
  Activation activation;
};

// What the driver needs to know to cut a product into tiles and to multiply them. Operands are packed as numbers of
// type Packed (uint16_t: the bits of bf16), sums are kept as Acc.
template <class Acc, class Packed>
struct TileKernel {
  int mr, nr;
  int group_a = 1, group_b = 1;  // of panels; a slice of K is packed as whole groups of the larger one
  int parts = 1;                 // numbers packed for one of an operand: f32 as three of bf16
  int lanes;                     // of one vector of sums
  int64_t kc;                    // longest slice of K: a panel of B stays in the first-level cache
  int64_t block_a;               // lanes of A whose slices stay in the second-level cache
  int64_t block_b;
  int64_t chunk_a;      // lanes of A that meet a panel of B in turn: rows of the result, often each in its own page
  int64_t swept_b = 0;  // bytes of a B so small that every panel of A meets all of it in turn, and rows grow on and on
  bool ask_ahead;       // for the next panel of B while this one is multiplied
  double alone;  // operations (2 m n k) of a product so small that waking other threads costs more than they save

  // c[r * c_stride + j] = sum over k of a(r, k) * b(k, j) (+ c when add), for r < rows and j < cols rounded up to whole
  // vectors. kc counts numbers as packed. Without groups, a(r, k) is a[k * a_stride + r] and b(k, j) is b[k * b_stride
  // + j]; panels with groups have no strides.
  using Multiply = void(int rows, int cols, int64_t kc, const Packed* a, int64_t a_stride, const Packed* b,
                        int64_t b_stride, Acc* c, int64_t c_stride, bool add);
  Multiply* multiply;
  // Where not null: the same for an A that is not packed, a[r * a_stride + k]; with groups, for whole tiles: rows are a
  // multiple of `lanes`, kc is one of group().
  Multiply* multiply_rows = nullptr;
  void (*finish)(const FinishTile<Acc>& tile);  // null: that of f32

  // Where not null, a thread calls these before its first and after its last multiply() of a task.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;

  int group() const { return group_a > group_b ? group_a : group_b; }
  PanelLayout layout_a() const { return {mr, group_a, group(), parts}; }
  PanelLayout layout_b() const { return {nr, group_b, group(), parts}; }
};

template <class Acc>
struct GemmKernel : TileKernel<Acc, Acc> {
  // out[r] = sum over k of rows[r * row_stride + k] * x[k], for r < count.
  void (*dot)(int64_t count, int64_t k, const Acc* rows, int64_t row_stride, const Acc* x, Acc* out);
  void (*pack)(const PackPanels<Acc, Acc>& panels);
  void (*pack_bf16)(const PackPanels<uint16_t, Acc>& panels);  // bits of bf16; null for f64
};

// Products of bf16 with sums in f32.
struct Bf16Kernel : TileKernel<float, uint16_t> {
  void (*pack)(const PackPanels<uint16_t, uint16_t>& panels);
};

// Products of f32 by instructions for bf16.
struct SplitKernel : TileKernel<float, uint16_t> {
  void (*pack)(const PackPanels<float, uint16_t>& panels);
};

inline constexpr int64_t kMaxSliceK = 1024;  // >= kc of every kernel
inline constexpr int kMaxPanelWidth = 64;    // >= mr and nr of every kernel

struct GemmKernels {
  GemmKernel<float> f32;
  GemmKernel<double> f64;
  Bf16Kernel bf16{};    // without multiply(): bf16 is widened to f32 while it is packed
  SplitKernel split{};  // without multiply(): there is nothing faster than `f32`
};

template <>
GemmKernels make_table<GemmKernels, VectorFamily::generic>();
template <>
GemmKernels make_table<GemmKernels, VectorFamily::neon>();
template <>
GemmKernels make_table<GemmKernels, VectorFamily::avx2>();
template <>
GemmKernels make_table<GemmKernels, VectorFamily::avx512>();

Bf16Kernel gemm_kernel_neonbf16();
Bf16Kernel gemm_kernel_avx512bf16();
Bf16Kernel gemm_kernel_amx();
SplitKernel gemm_split_kernel_amx();

// The table of instruction_set().
template <class Acc>
const GemmKernel<Acc>& gemm_kernel();
const Bf16Kernel* bf16_kernel();    // null where bf16 is widened
const SplitKernel* split_kernel();  // null where f32 is not split

}  // namespace bonfire::cpu
