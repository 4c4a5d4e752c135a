#include "bonfire/runtime/memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bonfire::runtime {

namespace {
constexpr size_t kAlignment = 256;  // bytes; cuBLASLt wants its workspace so
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

Placement place(std::span<const Interval> intervals) {
  Placement placement;
  placement.offsets.resize(intervals.size());
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });

  std::vector<size_t> placed;  // sorted by offset
  for (size_t current : order) {
    const Interval& interval = intervals[current];
    size_t bytes = aligned(interval.bytes), offset = 0;
    for (size_t other : placed) {
      const Interval& taken = intervals[other];
      if (taken.last < interval.first || taken.first > interval.last) continue;
      if (placement.offsets[other] >= offset + bytes) break;
      offset = std::max(offset, placement.offsets[other] + aligned(taken.bytes));
    }
    placement.offsets[current] = offset;
    placement.total = std::max(placement.total, offset + bytes);
    auto before = std::upper_bound(placed.begin(), placed.end(), offset,
                                   [&](size_t at, size_t other) { return at < placement.offsets[other]; });
    placed.insert(before, current);
  }
  return placement;
}

Placement place_apart(std::span<const Interval> intervals) {
  Placement placement;
  for (const Interval& interval : intervals)
    placement.offsets.push_back(std::exchange(placement.total, placement.total + aligned(interval.bytes)));
  return placement;
}

size_t lower_bound(std::span<const Interval> intervals) {
  std::vector<std::pair<int, int64_t>> events;  // (step, change in bytes)
  for (const Interval& interval : intervals) {
    events.emplace_back(interval.first, static_cast<int64_t>(aligned(interval.bytes)));
    events.emplace_back(interval.last + 1, -static_cast<int64_t>(aligned(interval.bytes)));
  }
  std::sort(events.begin(), events.end());
  int64_t now = 0, most = 0;
  for (const auto& [step, change] : events) most = std::max(most, now += change);
  return static_cast<size_t>(most);
}

}  // namespace bonfire::runtime
