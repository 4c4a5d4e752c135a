#pragma once
// Packing of bf16 panels with AVX-512, for the kernels that multiply them: groups of 2 steps (a pair is one word) or of
// 32 (a cache line). `Isa` is a type of an unnamed namespace, as in gemm_kernel_template.h.
//
// Numbers come out of the source 32 at a time, as masked loads: one where they lie side by side, one per stretch where
// they do not. What is missing (lanes beyond the edge, steps beyond the end of K) is masked out and so becomes zero.

#include <immintrin.h>

#include "bonfire/backend/cpu/gemm/gemm_avx512_template.h"
#include "bonfire/backend/cpu/gemm/gemm_kernel.h"

namespace bonfire::cpu {

// What packing has to do with the source and with the order of panels. `Parts` numbers are packed for one of the
// source.
template <class Isa, class Source, int Parts>
struct PanelsOfBf16 {
  using Pack = PackPanels<Source, uint16_t>;
  using Words = typename WordSquare<Isa>::Words;  // a word is a pair of numbers
  static constexpr int kBatch = 32;               // numbers loaded at a time
  static constexpr int kWords = WordSquare<Isa>::kWords;

  // Numbers whose bits are in `mask` lie side by side: number i at source[offset + i].
  struct Stretch {
    int64_t offset;
    __mmask32 mask;
  };
  struct Stretches {
    int count = 0;
    Stretch part[kBatch];

    Stretches() {}
    Stretches(const int64_t* offset, int64_t numbers) {
      for (int64_t first = 0; first < numbers; ++count) {
        int64_t end = first + 1;
        while (end < numbers && offset[end] == offset[end - 1] + 1) ++end;
        const auto bits = static_cast<uint32_t>((uint64_t{1} << end) - (uint64_t{1} << first));
        part[count] = {offset[first] - first, bits};
        first = end;
      }
    }
    int64_t first() const { return count > 0 ? part[0].offset : 0; }  // number 0
  };

  // One panel of an operand.
  struct Panel {
    const Pack& p;
    int64_t lane, lanes;  // the first, and how many the operand has
    int64_t steps;        // with padding
    uint16_t* to;         // [steps / 32][Parts][32, width]

    uint16_t* at(int64_t k, int part) const { return to + (k * Parts + part * kBatch) * p.layout.width; }
  };

  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

  // Lengths of the stretches of `offset`, on average.
  static double average_stretch(const int64_t* offset, int64_t count) {
    int64_t stretches = 1;
    for (int64_t i = 1; i < count; ++i) stretches += offset[i] != offset[i - 1] + 1;
    return static_cast<double>(count) / static_cast<double>(stretches);
  }

  template <class Body>
  static void each_panel(const Pack& p, int64_t steps, const Body& body) {
    for (int64_t lane = 0; lane < p.lanes; lane += p.layout.width)
      body(Panel{p, lane, least(p.layout.width, p.lanes - lane), steps, p.panels + lane * steps * Parts});
  }

  // Packs along the longer stretches of memory. Sources whose steps of K lie side by side: by_steps(panel, is it of
  // lines, stretches of every 32 steps). Sources whose lanes do: by_lanes(panel, is it of lines, first of 32 steps),
  // for all panels in turn, to stay in few pages of memory.
  template <class BySteps, class ByLanes>
  static void pack_along(const Pack& p, const BySteps& by_steps, const ByLanes& by_lanes) {
    const int64_t multiple = p.layout.multiple, steps = (p.kc + multiple - 1) / multiple * multiple;
    const bool lines = p.layout.group == kBatch;
    if (average_stretch(p.lane_offset, p.lanes) > average_stretch(p.k_offset, p.kc)) {
      for (int64_t k = 0; k < p.kc; k += kBatch)
        each_panel(p, steps, [&](const Panel& panel) { by_lanes(panel, lines, k); });
    } else {
      Stretches stretches[kMaxSliceK / kBatch];
      for (int64_t k = 0; k < p.kc; k += kBatch)
        stretches[k / kBatch] = Stretches(p.k_offset + k, least(kBatch, p.kc - k));
      each_panel(p, steps, [&](const Panel& panel) { by_steps(panel, lines, stretches); });
    }
  }
};

// Bits of bf16 as they are.
template <class Isa>
struct PackBf16 : PanelsOfBf16<Isa, uint16_t, 1> {
  using Base = PanelsOfBf16<Isa, uint16_t, 1>;
  using Base::kBatch, Base::kWords, Base::least;
  using typename Base::Pack, typename Base::Panel, typename Base::Stretches, typename Base::Words;

  typedef uint16_t Numbers __attribute__((vector_size(64)));

  [[gnu::always_inline]] static Numbers load(const uint16_t* source, const Stretches& stretches) {
    __m512i numbers = _mm512_setzero_si512();
    for (int i = 0; i < stretches.count; ++i)
      numbers = _mm512_mask_loadu_epi16(numbers, stretches.part[i].mask, source + stretches.part[i].offset);
    return (Numbers)numbers;
  }

  // Words of an even step and the odd one after it, of the lanes [0, 16) or [16, 32).
  [[gnu::always_inline]] static Words low_pairs(Numbers even, Numbers odd) {
    return (Words)__builtin_shufflevector(even, odd, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9,
                                          41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
  }
  [[gnu::always_inline]] static Words high_pairs(Numbers even, Numbers odd) {
    return (Words)__builtin_shufflevector(even, odd, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24,
                                          56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
  }

  // Mask of the words of a row of `words` that stand in the vector from `first` on.
  static __mmask16 word_mask(int64_t words, int64_t first) {
    const int64_t count = words - first;
    return static_cast<__mmask16>(count >= kWords ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1);
  }

  // ---- sources whose steps of K lie side by side: 32 steps at a time, along the lanes of memory ----

  static void lines_by_steps(const Panel& panel, const Stretches* steps) {
    const int64_t width = panel.p.layout.width;
    for (int64_t i = 0; i < width; ++i)
      for (int64_t k = 0; k < panel.steps; k += kBatch) {
        Numbers line{};
        if (i < panel.lanes) line = load(panel.p.source + panel.p.lane_offset[panel.lane + i], steps[k / kBatch]);
        __builtin_memcpy(panel.at(k, 0) + i * kBatch, &line, sizeof line);
      }
  }

  static void pairs_by_steps(const Panel& panel, const Stretches* steps) {
    const int64_t width = panel.p.layout.width;
    for (int64_t first = 0; first < width; first += kWords) {
      const __mmask16 mask = word_mask(width, first);
      for (int64_t k = 0; k < panel.steps; k += kBatch) {
        Words words[kWords] = {};
#pragma GCC unroll 16
        for (int i = 0; i < kWords; ++i)
          if (first + i < panel.lanes) {
            const int64_t lane = panel.p.lane_offset[panel.lane + first + i];
            words[i] = (Words)load(panel.p.source + lane, steps[k / kBatch]);
          }
        WordSquare<Isa>::transpose(words);
        uint16_t* to = panel.at(k, 0) + 2 * first;
#pragma GCC unroll 16
        for (int i = 0; i < kWords; ++i)
          if (k + 2 * i < panel.steps) _mm512_mask_storeu_epi32(to + 2 * i * width, mask, (__m512i)words[i]);
      }
    }
  }

  // ---- sources whose lanes lie side by side ----

  // Reads across memory, so the next 32 steps have to be asked for.
  static Numbers load_step(const Pack& p, int64_t k, const Stretches& lanes) {
    if (k + kBatch < p.kc) __builtin_prefetch(p.source + p.k_offset[k + kBatch] + lanes.first());
    if (k >= p.kc) return Numbers{};
    return load(p.source + p.k_offset[k], lanes);
  }

  static void pairs_by_lanes(const Panel& panel, int64_t k_begin) {
    const int64_t width = panel.p.layout.width, k_end = least(k_begin + kBatch, panel.steps);
    for (int64_t first = 0; first < width; first += kBatch) {
      const Stretches lanes(panel.p.lane_offset + panel.lane + first, least(kBatch, panel.lanes - first));
      const __mmask16 low = word_mask(width, first), high = word_mask(width, first + kWords);
      for (int64_t k = k_begin; k < k_end; k += 2) {
        const Numbers even = load_step(panel.p, k, lanes), odd = load_step(panel.p, k + 1, lanes);
        uint16_t* to = panel.at(k_begin, 0) + (k - k_begin) * width + 2 * first;
        _mm512_mask_storeu_epi32(to, low, (__m512i)low_pairs(even, odd));
        if (high) _mm512_mask_storeu_epi32(to + 2 * kWords, high, (__m512i)high_pairs(even, odd));
      }
    }
  }

  // Pairs of an even step and the odd one after it, as one instruction makes them: of the first or the other four of
  // every eight lanes.
  template <int Four>
  [[gnu::always_inline]] static Words pairs_of_fours(Numbers even, Numbers odd) {
    const auto a = (__m512i)even, b = (__m512i)odd;
    return (Words)(Four == 0 ? _mm512_unpacklo_epi16(a, b) : _mm512_unpackhi_epi16(a, b));
  }

  static void lines_by_lanes(const Panel& panel, int64_t k) {
    const int64_t width = panel.p.layout.width;
    for (int64_t first = 0; first < width; first += kBatch) {
      const Stretches lanes(panel.p.lane_offset + panel.lane + first, least(kBatch, panel.lanes - first));
      Words fours[2][kWords];
#pragma GCC unroll 16
      for (int i = 0; i < kWords; ++i) {
        const Numbers even = load_step(panel.p, k + 2 * i, lanes), odd = load_step(panel.p, k + 2 * i + 1, lanes);
        fours[0][i] = pairs_of_fours<0>(even, odd);
        fours[1][i] = pairs_of_fours<1>(even, odd);
      }
      store_lines<0>(fours[0], panel.at(k, 0) + first * kBatch, width - first);
      store_lines<1>(fours[1], panel.at(k, 0) + first * kBatch, width - first);
    }
  }

  // words[step / 2][lane] as a line per lane; lanes are those of pairs_of_fours().
  template <int Four>
  static void store_lines(Words (&words)[kWords], uint16_t* to, int64_t lanes) {
    WordSquare<Isa>::transpose(words);
#pragma GCC unroll 16
    for (int i = 0; i < kWords; ++i) {
      const int lane = i / 4 * 8 + 4 * Four + i % 4;
      if (lane < lanes) __builtin_memcpy(to + lane * kBatch, &words[i], sizeof words[i]);
    }
  }

  static void pack(const Pack& p) {
    Base::pack_along(
        p,
        [](const Panel& panel, bool lines, const Stretches* steps) {
          lines ? lines_by_steps(panel, steps) : pairs_by_steps(panel, steps);
        },
        [](const Panel& panel, bool lines, int64_t k) { lines ? lines_by_lanes(panel, k) : pairs_by_lanes(panel, k); });
  }
};

}  // namespace bonfire::cpu
