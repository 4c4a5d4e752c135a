#pragma once
// Packing of f32 as three numbers of bf16 each (gemm_kernel.h), with AVX-512. `Isa` as in gemm_pack_bf16_template.h.
//
// Of 32 steps of K, step i stands beside step i + 16: in a line of A as numbers 2 i and 2 i + 1, in B as pair i. A word
// is then made of the upper halves of two vectors' words by a shift and a mask, and nothing is shuffled but where
// panels run across memory: there squares of f32 are transposed before they are split.

#include <immintrin.h>

#include "bonfire/backend/cpu/gemm/gemm_avx512_template.h"
#include "bonfire/backend/cpu/gemm/gemm_pack_bf16_template.h"

namespace bonfire::cpu {

template <class Isa, int Width>
struct PackSplit : PanelsOfBf16<Isa, float, 3> {
  using Base = PanelsOfBf16<Isa, float, 3>;
  using Base::kBatch, Base::kWords, Base::least;
  using typename Base::Pack, typename Base::Panel, typename Base::Stretches, typename Base::Words;
  static constexpr int kParts = 3;

  // 16 numbers, as their bits.
  [[gnu::always_inline]] static Words load(const float* source, const Stretches& stretches, int first) {
    auto add = [&](__m512 numbers, int i) {
      return _mm512_mask_loadu_ps(numbers, static_cast<__mmask16>(stretches.part[i].mask >> first),
                                  source + stretches.part[i].offset + first);
    };
    __m512 numbers = _mm512_setzero_ps();
    if (stretches.count > 0) numbers = add(numbers, 0);
    for (int i = 1; i < stretches.count; ++i) numbers = add(numbers, i);
    return (Words)numbers;
  }

  // The parts of 16 numbers and of those 16 steps on, as words. The first two parts are rounded, so that what is left
  // out has no preferred sign; the last one is exact, and stays NaN where the number is.
  [[gnu::always_inline]] static void store_parts(Words low, Words high, uint16_t* to) {
    const Words upper = Words{} + 0xFFFF0000U, half = Words{} + 0x8000U;
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part) {
      const Words low_part = (part + 1 < kParts ? low + half : low) & upper;
      const Words high_part = (part + 1 < kParts ? high + half : high) & upper;
      const Words words = (low_part >> 16) | high_part;
      __builtin_memcpy(to + part * kBatch * Width, &words, sizeof words);
      low = (Words)_mm512_sub_ps((__m512)low, (__m512)low_part);
      high = (Words)_mm512_sub_ps((__m512)high, (__m512)high_part);
    }
  }

  // Words of 16 lanes from `first` on, when squares have been transposed or need not be: word i of all steps of lane i
  // (Lines), or pair i of all lanes.
  template <bool Lines>
  static uint16_t* place(uint16_t* to, int64_t first, int i) {
    return Lines ? to + (first + i) * kBatch : to + 2 * (i * Width + first);
  }

  template <bool Lines>
  static void store_square(Words (&low)[kWords], Words (&high)[kWords], uint16_t* to, int64_t first) {
    WordSquare<Isa>::transpose(low);
    WordSquare<Isa>::transpose(high);
#pragma GCC unroll 16
    for (int i = 0; i < kWords; ++i) store_parts(low[i], high[i], place<Lines>(to, first, i));
  }

  // ---- sources whose steps of K lie side by side ----

  static void lines_by_steps(const Panel& panel, const Stretches* steps) {
    const int64_t* lane = panel.p.lane_offset + panel.lane;
    for (int64_t k = 0; k < panel.steps; k += kBatch) {
      const Stretches& stretches = steps[k / kBatch];
      uint16_t* to = panel.at(k, 0);
      for (int i = 0; i < Width; ++i, to += kBatch) {
        if (i >= panel.lanes) {
          store_parts(Words{}, Words{}, to);
          continue;
        }
        const float* source = panel.p.source + lane[i];
        store_parts(load(source, stretches, 0), load(source, stretches, kWords), to);
      }
    }
  }

  static void pairs_by_steps(const Panel& panel, const Stretches* steps) {
    for (int64_t k = 0; k < panel.steps; k += kBatch)
      for (int64_t first = 0; first < Width; first += kWords) {
        const int64_t* lane = panel.p.lane_offset + panel.lane + first;
        Words low[kWords] = {}, high[kWords] = {};
#pragma GCC unroll 16
        for (int i = 0; i < kWords; ++i)
          if (first + i < panel.lanes) {
            low[i] = load(panel.p.source + lane[i], steps[k / kBatch], 0);
            high[i] = load(panel.p.source + lane[i], steps[k / kBatch], kWords);
          }
        store_square<false>(low, high, panel.at(k, 0), first);
      }
  }

  // ---- sources whose lanes lie side by side ----

  static void by_lanes(const Panel& panel, bool lines, int64_t k) {
    for (int64_t first = 0; first < Width; first += kWords) {
      const Stretches lanes(panel.p.lane_offset + panel.lane + first, least(kWords, panel.lanes - first));
      lines ? by_lanes<true>(panel, k, first, lanes) : by_lanes<false>(panel, k, first, lanes);
    }
  }

  template <bool Lines>
  static void by_lanes(const Panel& panel, int64_t k, int64_t first, const Stretches& lanes) {
    const float* source = panel.p.source;
    const int64_t* offset = panel.p.k_offset + k;
    const int64_t left = panel.p.kc - k;  // steps
    // This reads across memory, so the next 32 steps have to be asked for.
    for (int64_t i = kBatch; i < least(left, 2 * kBatch); ++i) __builtin_prefetch(source + offset[i] + lanes.first());
    uint16_t* to = panel.at(k, 0);
    auto step = [&](int i) { return i < left ? load(source + offset[i], lanes, 0) : Words{}; };
    if constexpr (Lines) {
      Words low[kWords], high[kWords];
#pragma GCC unroll 16
      for (int i = 0; i < kWords; ++i) {
        low[i] = step(i);
        high[i] = step(i + kWords);
      }
      store_square<true>(low, high, to, first);
    } else {
      for (int i = 0; i < kWords; ++i) store_parts(step(i), step(i + kWords), place<false>(to, first, i));
    }
  }

  static void pack(const Pack& p) {
    Base::pack_along(
        p,
        [](const Panel& panel, bool lines, const Stretches* steps) {
          lines ? lines_by_steps(panel, steps) : pairs_by_steps(panel, steps);
        },
        [](const Panel& panel, bool lines, int64_t k) { by_lanes(panel, lines, k); });
  }
};

}  // namespace bonfire::cpu
