#pragma once
// Loops over images whose channels have numbers of their own (statistics, scales), for either place of the channel
// axis: [outer, channels, inner] in planes, or [outer, channels] in rows (inner = 1: channels-last images, plain
// matrices).
//
// Sums over channels are cut by the shape alone, and parts are added in order: the same bits with any thread count.

#include <algorithm>
#include <cstdint>

#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/tensor/shape.h"

namespace bonfire::cpu {

struct ChannelExtent {
  int64_t outer = 0, channels = 0, inner = 1;

  bool rows() const { return inner == 1; }
  int64_t per_channel() const { return outer * inner; }
  // How many ranges of `outer` are summed separately.
  int64_t parts() const {
    int64_t wanted = rows() ? outer * channels / 16384 : 64 / std::max<int64_t>(channels, 1);
    return std::clamp<int64_t>(wanted, 1, std::clamp<int64_t>(outer, 1, 64));
  }
};

// x [N, C], [N, C, L] or [N, C, H, W]; `last` says that channels are its fastest axis in memory.
inline ChannelExtent channel_extent(const Shape& x, bool last) {
  ChannelExtent extent{x[0], x[1], 1};
  for (int i = 2; i < x.rank(); ++i) (last ? extent.outer : extent.inner) *= x[i];
  return extent;
}

// The numbers of one channel, table[k][channel], in registers.
template <class Acc, int K>
struct OneChannel {
  Acc value[K];
  OneChannel(const Acc* table, int64_t channels, int64_t channel) {
    for (int k = 0; k < K; ++k) value[k] = table[k * channels + channel];
  }
  Acc operator[](int k) const { return value[k]; }
};

// The numbers of one channel, read from the table when asked for: neighbouring elements have neighbouring channels.
template <class Acc>
struct ChannelColumn {
  const Acc* column;
  int64_t channels;
  Acc operator[](int k) const { return column[k * channels]; }
};

inline constexpr int64_t kElementsPerTask = 8192;

// Calls body(element, numbers) for every element, numbers[k] being table[k, channel of the element]. The body may write
// where it has just read.
template <int K, class Acc, class Body>
void for_each_element(const ChannelExtent& extent, const Acc* table /* [K, channels] */, ThreadPool& threads,
                      const Body& body) {
  int64_t channels = extent.channels, inner = extent.inner;
  if (extent.rows()) {
    threads.parallel_for(extent.outer, kElementsPerTask / std::max<int64_t>(channels, 1),
                         [&](int64_t row, int64_t end) {
                           for (; row < end; ++row) {
                             int64_t first = row * channels;
#pragma GCC ivdep
                             for (int64_t c = 0; c < channels; ++c)
                               body(first + c, ChannelColumn<Acc>{table + c, channels});
                           }
                         });
    return;
  }
  threads.parallel_for(extent.outer * channels, kElementsPerTask / std::max<int64_t>(inner, 1),
                       [&](int64_t plane, int64_t end) {
                         for (; plane < end; ++plane) {
                           const OneChannel<Acc, K> numbers(table, channels, plane % channels);
                           int64_t first = plane * inner;
#pragma GCC ivdep
                           for (int64_t i = 0; i < inner; ++i) body(first + i, numbers);
                         }
                       });
}

// ---- sums ----

template <class Acc>
struct PairOfSums {
  Acc first, second;
};

// Two sums at once, as row_sum does one: Σ term(first + i) for i in [0, count).
template <class Acc, class Term>
PairOfSums<Acc> sum_run(int64_t first, int64_t count, const Term& term) {
  Acc a[kLanes] = {}, b[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      PairOfSums<Acc> value = term(first + i + lane);
      a[lane] += value.first;
      b[lane] += value.second;
    }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    PairOfSums<Acc> value = term(first + i);
    a[lane] += value.first;
    b[lane] += value.second;
  }
  PairOfSums<Acc> total{0, 0};
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    total.first += a[lane];
    total.second += b[lane];
  }
  return total;
}

// Workspace of sum_channels: parts of double [parts, 2, channels], and rows of Acc [parts, 2, channels].
inline size_t sum_channels_bytes(const ChannelExtent& extent) {
  return static_cast<size_t>(extent.parts() * extent.channels) * 4 * sizeof(double);
}

inline constexpr int64_t kRowsPerFlush = 64;  // rows summed in Acc before they are added in double

template <int K, class Acc, class Term>
void sum_rows(const ChannelExtent& extent, const Acc* table, int64_t begin, int64_t end,
              double* sums /* [2, channels] */, Acc* partial /* [2, channels] */, const Term& term) {
  int64_t channels = extent.channels;
  std::fill_n(sums, 2 * channels, 0.0);
  for (int64_t row = begin; row < end; row += kRowsPerFlush) {
    std::fill_n(partial, 2 * channels, Acc(0));
    for (int64_t r = row; r < std::min(end, row + kRowsPerFlush); ++r) {
      int64_t first = r * channels;
#pragma GCC ivdep
      for (int64_t c = 0; c < channels; ++c) {
        PairOfSums<Acc> value = term(first + c, ChannelColumn<Acc>{table + c, channels});
        partial[c] += value.first;
        partial[channels + c] += value.second;
      }
    }
    for (int64_t i = 0; i < 2 * channels; ++i) sums[i] += static_cast<double>(partial[i]);
  }
}

// Two sums per channel: over its elements, term(element, numbers) → PairOfSums. Calls finish(channel, first, second)
// with the totals, in no particular order.
template <int K, class Acc, class Term, class Finish>
void sum_channels(const ChannelExtent& extent, const Acc* table /* [K, channels] */, void* workspace,
                  ThreadPool& threads, const Term& term, const Finish& finish) {
  int64_t channels = extent.channels, parts = extent.parts();
  double* sums = static_cast<double*>(workspace);                      // [parts, 2, channels]
  Acc* partial = reinterpret_cast<Acc*>(sums + parts * 2 * channels);  // [parts, 2, channels]
  auto part_begin = [&](int64_t part) { return extent.outer * part / parts; };
  if (extent.rows()) {
    threads.run(parts, [&](int64_t part) {
      sum_rows<K>(extent, table, part_begin(part), part_begin(part + 1), sums + part * 2 * channels,
                  partial + part * 2 * channels, term);
    });
  } else {
    threads.run(parts * channels, [&](int64_t task) {
      int64_t part = task / channels, channel = task % channels;
      const OneChannel<Acc, K> numbers(table, channels, channel);
      double a = 0, b = 0;
      for (int64_t n = part_begin(part); n < part_begin(part + 1); ++n) {
        PairOfSums<Acc> run = sum_run<Acc>((n * channels + channel) * extent.inner, extent.inner,
                                           [&](int64_t element) { return term(element, numbers); });
        a += static_cast<double>(run.first);
        b += static_cast<double>(run.second);
      }
      sums[part * 2 * channels + channel] = a;
      sums[(part * 2 + 1) * channels + channel] = b;
    });
  }
  for (int64_t c = 0; c < channels; ++c) {
    double a = 0, b = 0;
    for (int64_t part = 0; part < parts; ++part) {
      a += sums[part * 2 * channels + c];
      b += sums[(part * 2 + 1) * channels + c];
    }
    finish(c, a, b);
  }
}

}  // namespace bonfire::cpu
