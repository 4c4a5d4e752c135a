// Products of bf16 with bfmmla: two lanes of A times two of B, four steps of K at a time, are four sums in one
// register.

#include <arm_neon.h>

#include "bonfire/backend/cpu/gemm_kernel.h"

namespace bonfire::cpu {

namespace {

// 32 registers: 24 of sums (each 2 x 2), 4 of A, the rest for B.
constexpr int kMr = 8, kNr = 12, kLanes = 4;
constexpr int kGroup = 4;  // steps of K

bfloat16x8_t load_bf16(const uint16_t* from) { return vreinterpretq_bf16_u16(vld1q_u16(from)); }

// Rows 2 * r and 2 * r + 1 of four columns, out of the 2 x 2 blocks that hold two columns each.
float32x4_t upper_row(float32x4_t left, float32x4_t right) {
  return vcombine_f32(vget_low_f32(left), vget_low_f32(right));
}
float32x4_t lower_row(float32x4_t left, float32x4_t right) {
  return vcombine_f32(vget_high_f32(left), vget_high_f32(right));
}

void store(float* to, float32x4_t sums, bool add) { vst1q_f32(to, add ? vaddq_f32(sums, vld1q_f32(to)) : sums); }

template <int RowPairs, int Quads>
void multiply_pairs(int rows, int64_t kc, const uint16_t* a, const uint16_t* b, float* c, int64_t c_stride, bool add) {
  float32x4_t sum[RowPairs][2 * Quads] = {};
  for (int64_t k = 0; k < kc; k += kGroup, a += kMr * kGroup, b += kNr * kGroup) {
    bfloat16x8_t left[RowPairs];
#pragma GCC unroll 4
    for (int r = 0; r < RowPairs; ++r) left[r] = load_bf16(a + 2 * kGroup * r);
#pragma GCC unroll 6
    for (int v = 0; v < 2 * Quads; ++v) {
      const uint16_t* from = b + 2 * kGroup * v;
      // Loaded only after earlier products: all of B at once would push sums out of the registers.
#pragma GCC unroll 4
      for (int r = 0; r < RowPairs && v > 1; ++r) asm("" : "+r"(from) : "w"(sum[r][v - 2]));
      const bfloat16x8_t right = load_bf16(from);
#pragma GCC unroll 4
      for (int r = 0; r < RowPairs; ++r) sum[r][v] = vbfmmlaq_f32(sum[r][v], left[r], right);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < RowPairs; ++r, c += 2 * c_stride)
#pragma GCC unroll 3
    for (int q = 0; q < Quads; ++q) {
      store(c + q * kLanes, upper_row(sum[r][2 * q], sum[r][2 * q + 1]), add);
      if (2 * r + 1 < rows) store(c + c_stride + q * kLanes, lower_row(sum[r][2 * q], sum[r][2 * q + 1]), add);
    }
}

template <int RowPairs = kMr / 2>
void multiply(int rows, int cols, int64_t kc, const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t b_stride,
              float* c, int64_t c_stride, bool add) {
  if (rows <= 2 * (RowPairs - 1)) {
    if constexpr (RowPairs > 1) multiply<RowPairs - 1>(rows, cols, kc, a, a_stride, b, b_stride, c, c_stride, add);
  } else if (cols > 2 * kLanes) {
    multiply_pairs<RowPairs, 3>(rows, kc, a, b, c, c_stride, add);
  } else if (cols > kLanes) {
    multiply_pairs<RowPairs, 2>(rows, kc, a, b, c, c_stride, add);
  } else {
    multiply_pairs<RowPairs, 1>(rows, kc, a, b, c, c_stride, add);
  }
}

// ---- packing: panel[k / 4][lane][k % 4] ----

using Pack = PackPanels<uint16_t, uint16_t>;

bool side_by_side(const int64_t* offset, int count) {
  for (int i = 1; i < count; ++i)
    if (offset[i] != offset[0] + i) return false;
  return true;
}

// One lane, up to four steps from k.
void pack_group(const Pack& p, int64_t lane, int64_t k, uint16_t* to) {
  const uint16_t* from = p.source + p.lane_offset[lane];
  for (int i = 0; i < kGroup; ++i) to[i] = k + i < p.kc ? from[p.k_offset[k + i]] : 0;
}

// For sources whose steps lie side by side.
void pack_by_steps(const Pack& p, int64_t first_lane, int64_t lanes, uint16_t* panel) {
  const int64_t width = p.layout.width;
  for (int64_t i = 0; i < lanes; ++i) {
    const uint16_t* from = p.source + p.lane_offset[first_lane + i];
    uint16_t* to = panel + i * kGroup;
    for (int64_t k = 0; k < p.kc; k += kGroup, to += width * kGroup) {
      if (k + kGroup <= p.kc && side_by_side(p.k_offset + k, kGroup))
        vst1_u16(to, vld1_u16(from + p.k_offset[k]));
      else
        pack_group(p, first_lane + i, k, to);
    }
  }
}

// Four lanes that lie side by side, four steps: a square to transpose.
void pack_square(const Pack& p, int64_t lane, int64_t k, uint16_t* to) {
  const uint16_t* from = p.source + p.lane_offset[lane];
  uint16x4_t row[kGroup];
  for (int i = 0; i < kGroup; ++i) row[i] = k + i < p.kc ? vld1_u16(from + p.k_offset[k + i]) : vdup_n_u16(0);
  const uint16x4x4_t square{row[0], row[1], row[2], row[3]};
  vst4_u16(to, square);
}

// For sources whose lanes lie side by side.
void pack_by_lanes(const Pack& p, int64_t first_lane, int64_t lanes, uint16_t* panel) {
  for (int64_t k = 0; k < p.kc; k += kGroup) {
    uint16_t* to = panel + k * p.layout.width;
    for (int64_t i = 0; i < lanes;) {
      const int64_t lane = first_lane + i;
      if (i + 4 <= lanes && side_by_side(p.lane_offset + lane, 4)) {
        pack_square(p, lane, k, to + i * kGroup);
        i += 4;
      } else {
        pack_group(p, lane, k, to + i * kGroup);
        ++i;
      }
    }
  }
}

void zero_missing_lanes(const Pack& p, int64_t lanes, uint16_t* panel) {
  const int64_t width = p.layout.width;
  for (int64_t k = 0; k < p.kc; k += kGroup, panel += width * kGroup)
    for (int64_t i = lanes; i < width; ++i) vst1_u16(panel + i * kGroup, vdup_n_u16(0));
}

// How many neighbours of `offset` are neighbours in memory too.
double adjacent_share(const int64_t* offset, int64_t count) {
  int64_t adjacent = 0;
  for (int64_t i = 1; i < count; ++i) adjacent += offset[i] == offset[i - 1] + 1;
  return static_cast<double>(adjacent) / static_cast<double>(count);
}

void pack(const Pack& p) {
  const int64_t width = p.layout.width, steps = (p.kc + kGroup - 1) / kGroup * kGroup;
  const bool by_lanes = adjacent_share(p.lane_offset, p.lanes) > adjacent_share(p.k_offset, p.kc);
  for (int64_t lane = 0; lane < p.lanes; lane += width) {
    const int64_t lanes = lane + width < p.lanes ? width : p.lanes - lane;
    uint16_t* panel = p.panels + lane * steps;
    if (lanes < width) zero_missing_lanes(p, lanes, panel);
    by_lanes ? pack_by_lanes(p, lane, lanes, panel) : pack_by_steps(p, lane, lanes, panel);
  }
}

}  // namespace

Bf16Kernel gemm_kernel_neonbf16() {
  Bf16Kernel kernel{};
  kernel.mr = kMr;
  kernel.nr = kNr;
  kernel.group_a = kernel.group_b = kGroup;
  kernel.lanes = kLanes;
  kernel.kc = 1024;
  kernel.block_a = 192;
  kernel.block_b = 240;
  kernel.chunk_a = 192;
  kernel.ask_ahead = true;
  kernel.alone = 2.4e6;
  kernel.multiply = &multiply<>;
  kernel.pack = &pack;
  return kernel;
}

}  // namespace bonfire::cpu
