#pragma once
// Packing of panels, for gemm_kernel_template.h.

#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa>
struct GemmPack {
  using G = GemmVectors<Isa>;
  using Scalar = typename G::Scalar;
  using Vector = typename G::Vector;
  using Quad = typename G::Quad;
  using Pair = typename G::Pair;
  using HalfVector = typename G::HalfVector;
  static constexpr int kLanes = G::kLanes;
  static constexpr int kQuad = G::kQuad;

  template <class Source>
  using Pack = PackPanels<Source, Scalar>;

  template <class Source>
  static void pack_scalar(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const Source* from = p.source + p.lane_offset[lane];
    for (int64_t k = k_begin; k < k_end; ++k, to += p.layout.width) *to = G::widen(from[p.k_offset[k]]);
  }

  // As many lanes as V has, from `lane`, that the source holds side by side.
  template <class V, class Source>
  static void pack_adjacent(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const Source* from = p.source + p.lane_offset[lane];
    const int64_t *offset = p.k_offset, width = p.layout.width;
    for (int64_t k = k_begin; k < k_end; ++k, to += width) G::store(to, G::template load<V>(from + offset[k]));
  }

  // kLanes lanes that lie in two runs, the second beginning `cut` lanes after the first: both runs are read as whole
  // vectors and blended.
  template <class Source>
  static void pack_two_runs(const Pack<Source>& p, int64_t lane, int cut, int64_t k_begin, int64_t k_end, Scalar* to) {
    decltype(Vector{} < Vector{}) second{};
    for (int i = 0; i < kLanes; ++i) second[i] = i >= cut ? -1 : 0;
    const Source* from0 = p.source + p.lane_offset[lane];
    const Source* from1 = p.source + p.lane_offset[lane + cut] - cut;
    const int64_t *offset = p.k_offset, width = p.layout.width;
    for (int64_t k = k_begin; k < k_end; ++k, to += width) {
      Vector low = G::template load<Vector>(from0 + offset[k]), high = G::template load<Vector>(from1 + offset[k]);
      Vector both = second ? high : low;
      G::store(to, both);
    }
  }

  static int64_t run_length(const int64_t* offset, int64_t first, int64_t end) {
    int64_t i = first + 1;
    while (i < end && offset[i] == offset[i - 1] + 1) ++i;
    return i - first;
  }

  // As much of a run of lanes as one copy can do; returns how many lanes.
  template <class Source>
  static int64_t pack_run(const Pack<Source>& p, int64_t lane, int64_t run, int64_t end, int64_t k, int64_t k_end,
                          Scalar* to) {
    if (run >= kLanes) {
      pack_adjacent<Vector>(p, lane, k, k_end, to);
      return kLanes;
    }
    if (p.over_read && lane + kLanes <= end && run + run_length(p.lane_offset, lane + run, end) >= kLanes) {
      pack_two_runs(p, lane, static_cast<int>(run), k, k_end, to);
      return kLanes;
    }
    if (run >= G::template lanes_of<HalfVector>) {
      pack_adjacent<HalfVector>(p, lane, k, k_end, to);
      return G::template lanes_of<HalfVector>;
    }
    if (run >= kQuad) {
      pack_adjacent<Quad>(p, lane, k, k_end, to);
      return kQuad;
    }
    if (run >= 2) {
      pack_adjacent<Pair>(p, lane, k, k_end, to);
      return 2;
    }
    pack_scalar(p, lane, k, k_end, to);
    return 1;
  }

  // All lanes of a panel, which lie side by side.
  template <int Vectors, class Source>
  static void pack_whole(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const Source* from = p.source + p.lane_offset[lane];
    const int64_t* offset = p.k_offset;
    for (int64_t k = k_begin; k < k_end; ++k, to += Vectors * kLanes) {
      const Source* step = from + offset[k];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) G::store(to + v * kLanes, G::template load<Vector>(step + v * kLanes));
    }
  }

  // The same for panels of any width; false for one that has to be packed in parts.
  template <class Source>
  static bool pack_as_whole(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const int64_t width = p.layout.width;
    if (lane + width > p.lanes || run_length(p.lane_offset, lane, lane + width) < width) return false;
    switch (width % kLanes == 0 ? width / kLanes : 0) {
      case 2: pack_whole<2>(p, lane, k_begin, k_end, to); return true;
      case 3: pack_whole<3>(p, lane, k_begin, k_end, to); return true;
      case 4: pack_whole<4>(p, lane, k_begin, k_end, to); return true;
      default: return false;
    }
  }

  // For sources whose lanes lie side by side: a few steps of all panels at a time, so that memory is read in its order.
  template <class Source>
  static void pack_by_lanes(const Pack<Source>& p) {
    constexpr int64_t kSteps = 32;
    for (int64_t k = 0; k < p.kc; k += kSteps) {
      const int64_t k_end = k + kSteps < p.kc ? k + kSteps : p.kc;
      for (int64_t panel = 0; panel < p.lanes; panel += p.layout.width) {
        const int64_t end = panel + p.layout.width < p.lanes ? panel + p.layout.width : p.lanes;
        Scalar* to = p.panels + panel * p.kc + k * p.layout.width;
        if (pack_as_whole(p, panel, k, k_end, to)) continue;
        for (int64_t lane = panel; lane < end;) {
          const int64_t run = run_length(p.lane_offset, lane, lane + kLanes < end ? lane + kLanes : end);
          lane += pack_run(p, lane, run, end, k, k_end, to + (lane - panel));
        }
      }
    }
  }

  // A square of kQuad lanes by kQuad steps, transposed in registers. `from[i]` is lane i at the first step.
  template <class Source>
  [[gnu::always_inline]] static void transpose(const Source* const (&from)[kQuad], int64_t k, Scalar* to, int width) {
    if constexpr (kQuad == 4) {
      Quad r0 = G::template load<Quad>(from[0] + k), r1 = G::template load<Quad>(from[1] + k);
      Quad r2 = G::template load<Quad>(from[2] + k), r3 = G::template load<Quad>(from[3] + k);
      Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      G::store(to, Quad(__builtin_shufflevector(low01, low23, 0, 1, 4, 5)));
      G::store(to + width, Quad(__builtin_shufflevector(low01, low23, 2, 3, 6, 7)));
      G::store(to + 2 * width, Quad(__builtin_shufflevector(high01, high23, 0, 1, 4, 5)));
      G::store(to + 3 * width, Quad(__builtin_shufflevector(high01, high23, 2, 3, 6, 7)));
    } else {
      Quad r0 = G::template load<Quad>(from[0] + k), r1 = G::template load<Quad>(from[1] + k);
      G::store(to, Quad(__builtin_shufflevector(r0, r1, 0, 2)));
      G::store(to + width, Quad(__builtin_shufflevector(r0, r1, 1, 3)));
    }
  }

  // Two lanes by kQuad steps.
  template <class Source>
  [[gnu::always_inline]] static void transpose_pair(const Source* from0, const Source* from1, Scalar* to, int width) {
    Quad r0 = G::template load<Quad>(from0), r1 = G::template load<Quad>(from1);
    Scalar pairs[2 * kQuad];
    if constexpr (kQuad == 4) {
      G::store(pairs, Quad(__builtin_shufflevector(r0, r1, 0, 4, 1, 5)));
      G::store(pairs + 4, Quad(__builtin_shufflevector(r0, r1, 2, 6, 3, 7)));
    } else {
      G::store(pairs, Quad(__builtin_shufflevector(r0, r1, 0, 2)));
      G::store(pairs + 2, Quad(__builtin_shufflevector(r0, r1, 1, 3)));
    }
#pragma GCC unroll 4
    for (int k = 0; k < kQuad; ++k) G::store(to + k * width, G::template load<Pair>(pairs + 2 * k));
  }

  // `Lanes` (kQuad or 2) lanes over the steps [k_begin, k_end) that lie side by side.
  template <int Lanes, class Source>
  static void pack_rows(const Pack<Source>& p, int64_t lane, int64_t k_begin, int64_t k_end, Scalar* to) {
    const Source* from[kQuad];
    for (int i = 0; i < Lanes; ++i) from[i] = p.source + p.lane_offset[lane + i] + p.k_offset[k_begin];
    const int64_t ahead = lane + Lanes < p.lanes ? p.lane_offset[lane + Lanes] - p.lane_offset[lane] : 0;
    const int width = p.layout.width;
    int64_t k = 0;
    for (; k + kQuad <= k_end - k_begin; k += kQuad, to += kQuad * width) {
      for (int i = 0; i < Lanes; ++i) __builtin_prefetch(from[i] + k + ahead);
      if constexpr (Lanes == kQuad)
        transpose(from, k, to, width);
      else
        transpose_pair(from[0] + k, from[1] + k, to, width);
    }
    for (int i = 0; i < Lanes; ++i) pack_scalar(p, lane + i, k_begin + k, k_end, to + i);
  }

  static int least(int64_t a, int64_t b) { return static_cast<int>(a < b ? a : b); }

  // The lanes [lane, end) of a panel over the steps [k, k_end) that lie side by side.
  template <class Source>
  static void pack_steps(const Pack<Source>& p, int64_t lane, int64_t end, int64_t k, int64_t k_end, Scalar* to) {
    constexpr bool kSquares = requires { Isa::pack_square(p.source, p.lane_offset, 1, 1, to, 1); };
    if constexpr (kSquares) {
      constexpr int64_t kSide = kLanes, kShort = 4;  // a square of mostly nothing does not pay
      if (k_end - k >= kShort) {
        for (; k < k_end; k += kSide, to += kSide * p.layout.width)
          for (int64_t i = lane; i < end; i += kSide)
            Isa::pack_square(p.source + p.k_offset[k], p.lane_offset + i, least(kSide, end - i),
                             least(kSide, k_end - k), to + (i - lane), p.layout.width);
        return;
      }
    }
    for (; lane + kQuad <= end; lane += kQuad, to += kQuad) pack_rows<kQuad>(p, lane, k, k_end, to);
    for (; lane + 2 <= end; lane += 2, to += 2) pack_rows<2>(p, lane, k, k_end, to);
    if (lane < end) pack_scalar(p, lane, k, k_end, to);
  }

  // For sources whose steps of K lie side by side.
  template <class Source>
  static void pack_by_steps(const Pack<Source>& p) {
    for (int64_t k = 0; k < p.kc;) {
      const int64_t k_end = k + run_length(p.k_offset, k, p.kc);
      for (int64_t panel = 0; panel < p.lanes; panel += p.layout.width) {
        const int64_t end = panel + p.layout.width < p.lanes ? panel + p.layout.width : p.lanes;
        pack_steps(p, panel, end, k, k_end, p.panels + panel * p.kc + k * p.layout.width);
      }
      k = k_end;
    }
  }

  template <class Source>
  static void zero_missing_lanes(const Pack<Source>& p) {
    const int64_t panel = p.lanes / p.layout.width * p.layout.width;
    Scalar* to = p.panels + panel * p.kc;
    for (int64_t k = 0; k < p.kc; ++k, to += p.layout.width)
      for (int64_t i = p.lanes - panel; i < p.layout.width; ++i) to[i] = 0;
  }

  template <class Source>
  static void pack(const Pack<Source>& p) {
    if (p.lanes % p.layout.width != 0) zero_missing_lanes(p);
    auto average_run = [](const int64_t* offset, int64_t count) {
      int64_t runs = 1;
      for (int64_t i = 1; i < count; ++i) runs += offset[i] != offset[i - 1] + 1;
      return static_cast<double>(count) / static_cast<double>(runs);
    };
    const double lane_run = average_run(p.lane_offset, p.lanes), k_run = average_run(p.k_offset, p.kc);
    if (lane_run >= k_run || (lane_run >= kQuad && k_run < 4 * lane_run))
      pack_by_lanes(p);
    else
      pack_by_steps(p);
  }
};

}  // namespace bonfire::cpu
