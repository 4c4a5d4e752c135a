// Products of bf16 with bfmmla: two lanes of A times two of B, four steps of K at a time, are four sums in one
// register.

#include "bonfire/backend/cpu/gemm/gemm_finish_template.h"
#include "bonfire/backend/cpu/gemm/gemm_kernel.h"
#include "bonfire/backend/cpu/gemm/gemm_neon_template.h"

namespace bonfire::cpu {

namespace {

// Of finished tiles.
struct Isa : Bf16OnNeon<Isa> {
  using Scalar = float;
  static constexpr int bytes = 16, mr = 1, vectors = 1;

  [[gnu::always_inline]] static bfloat16x4_t narrow(VectorType<float, 16> value) {
    return vcvt_bf16_f32((float32x4_t)value);
  }
};

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

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// How many of [first, end) lie side by side from `first` on.
int64_t run_length(const int64_t* offset, int64_t first, int64_t end) {
  int64_t i = first + 1;
  while (i < end && offset[i] == offset[i - 1] + 1) ++i;
  return i - first;
}

// Steps [k, k_end) of some lanes, number by number.
void pack_numbers(const Pack& p, int64_t lane, int64_t lanes, int64_t k, int64_t k_end, uint16_t* to) {
  for (; k < k_end; k += kGroup, to += p.layout.width * kGroup)
    for (int64_t i = 0; i < lanes; ++i) {
      const uint16_t* from = p.source + p.lane_offset[lane + i];
      for (int n = 0; n < kGroup; ++n) to[i * kGroup + n] = k + n < p.kc ? from[p.k_offset[k + n]] : 0;
    }
}

// `count` steps (a multiple of 4) that lie side by side, of two lanes. `step` numbers of a panel hold 4 steps.
[[gnu::always_inline]] inline void pack_pair(const uint16_t* first, const uint16_t* second, int64_t count, uint16_t* to,
                                             int64_t step) {
  int64_t k = 0;
  for (; k + 8 <= count; k += 8, to += 2 * step) {
    const uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(first + k)), b = vreinterpretq_u64_u16(vld1q_u16(second + k));
    vst1q_u16(to, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
    vst1q_u16(to + step, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
  }
  if (k == count) return;
  vst1_u16(to, vld1_u16(first + k));
  vst1_u16(to + kGroup, vld1_u16(second + k));
}

// For sources whose steps lie side by side: run by run.
void pack_by_steps(const Pack& p) {
  const int64_t width = p.layout.width, step = width * kGroup, steps = (p.kc + kGroup - 1) / kGroup * kGroup;
  for (int64_t k = 0, count; k < p.kc; k += count) {
    const int64_t whole = run_length(p.k_offset, k, p.kc) / kGroup * kGroup;
    count = whole > 0 ? whole : kGroup;
    for (int64_t panel = 0; panel < p.lanes; panel += width) {
      const int64_t lanes = least(width, p.lanes - panel);
      uint16_t* to = p.panels + panel * steps + k * width;
      if (whole == 0) {
        pack_numbers(p, panel, lanes, k, k + kGroup, to);
        continue;
      }
      const uint16_t* source = p.source + p.k_offset[k];
      const int64_t* lane = p.lane_offset + panel;
      int64_t i = 0;
      for (; i + 2 <= lanes; i += 2) pack_pair(source + lane[i], source + lane[i + 1], count, to + i * kGroup, step);
      for (int64_t n = 0; i < lanes && n < count; n += kGroup)
        vst1_u16(to + i * kGroup + n * width, vld1_u16(source + lane[i] + n));
    }
  }
}

// Steps [k, k_end) of 8 or 4 lanes that lie side by side: squares to transpose.
template <int Lanes>
void pack_columns(const Pack& p, int64_t lane, int64_t k, int64_t k_end, uint16_t* to) {
  const uint16_t* from = p.source + p.lane_offset[lane];
  const int64_t* offset = p.k_offset;
  const int64_t kc = p.kc, step = p.layout.width * kGroup;
  for (; k < k_end; k += kGroup, to += step) {
    if constexpr (Lanes == 8) {
      auto row = [&](int n) { return k + n < kc ? vld1q_u16(from + offset[k + n]) : vdupq_n_u16(0); };
      const uint16x8_t r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
      const uint16x8_t low02 = vzip1q_u16(r0, r2), high02 = vzip2q_u16(r0, r2);
      const uint16x8_t low13 = vzip1q_u16(r1, r3), high13 = vzip2q_u16(r1, r3);
      vst1q_u16(to, vzip1q_u16(low02, low13));
      vst1q_u16(to + 8, vzip2q_u16(low02, low13));
      vst1q_u16(to + 16, vzip1q_u16(high02, high13));
      vst1q_u16(to + 24, vzip2q_u16(high02, high13));
    } else {
      auto row = [&](int n) { return k + n < kc ? vld1_u16(from + offset[k + n]) : vdup_n_u16(0); };
      const uint16x4_t r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
      const uint16x8_t both02 = vcombine_u16(vzip1_u16(r0, r2), vzip2_u16(r0, r2));
      const uint16x8_t both13 = vcombine_u16(vzip1_u16(r1, r3), vzip2_u16(r1, r3));
      vst1q_u16(to, vzip1q_u16(both02, both13));
      vst1q_u16(to + 8, vzip2q_u16(both02, both13));
    }
  }
}

// For sources whose lanes lie side by side: a few steps of all panels at a time, so that memory is read in its order.
void pack_by_lanes(const Pack& p) {
  constexpr int64_t kSteps = 32;
  const int64_t width = p.layout.width, steps = (p.kc + kGroup - 1) / kGroup * kGroup;
  for (int64_t k = 0; k < p.kc; k += kSteps)
    for (int64_t panel = 0; panel < p.lanes; panel += width) {
      const int64_t end = least(panel + width, p.lanes), k_end = least(k + kSteps, p.kc);
      uint16_t* to = p.panels + panel * steps + k * width;
      for (int64_t lane = panel; lane < end;) {
        const int64_t run = run_length(p.lane_offset, lane, least(lane + 8, end));
        const int64_t count = run >= 8 ? 8 : run >= 4 ? 4 : 1;
        uint16_t* at = to + (lane - panel) * kGroup;
        if (count == 8)
          pack_columns<8>(p, lane, k, k_end, at);
        else if (count == 4)
          pack_columns<4>(p, lane, k, k_end, at);
        else
          pack_numbers(p, lane, 1, k, k_end, at);
        lane += count;
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
  const int64_t width = p.layout.width, steps = (p.kc + kGroup - 1) / kGroup * kGroup, last = p.lanes % width;
  if (last != 0) zero_missing_lanes(p, last, p.panels + (p.lanes - last) * steps);
  const bool by_lanes = adjacent_share(p.lane_offset, p.lanes) > adjacent_share(p.k_offset, p.kc);
  by_lanes ? pack_by_lanes(p) : pack_by_steps(p);
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
  kernel.finish = &GemmFinish<Isa>::finish;
  kernel.pack = &pack;
  return kernel;
}

}  // namespace bonfire::cpu
