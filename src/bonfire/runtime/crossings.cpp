#include "bonfire/runtime/crossings.h"

#include <algorithm>
#include <numeric>

namespace bonfire::runtime {

void ProgramOrder::add(int earlier, int later) {
  std::set<int>& own = before_[static_cast<size_t>(later)];
  const std::set<int>& further = before_[static_cast<size_t>(earlier)];
  own.insert(earlier);
  own.insert(further.begin(), further.end());
}

Placement place_crossings(const std::vector<CrossingValue>& values, const ProgramOrder& order) {
  constexpr size_t kAlignment = 256;
  auto is_over = [&](const CrossingValue& value, const CrossingValue& next) {
    return order.before(value.writer, next.writer) &&
           std::all_of(value.readers.begin(), value.readers.end(),
                       [&](int reader) { return order.before(reader, next.writer); });
  };
  auto size = [&](size_t i) { return (values[i].bytes + kAlignment - 1) / kAlignment * kAlignment; };
  std::vector<size_t> largest_first(values.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](size_t a, size_t b) { return values[a].bytes > values[b].bytes; });
  Placement placement{.offsets = std::vector<size_t>(values.size())};
  std::vector<size_t> placed;
  for (size_t i : largest_first) {
    std::vector<std::pair<size_t, size_t>> taken;  // [begin, end), of those that it must not meet
    for (size_t other : placed)
      if (!is_over(values[i], values[other]) && !is_over(values[other], values[i]))
        taken.emplace_back(placement.offsets[other], placement.offsets[other] + size(other));
    std::sort(taken.begin(), taken.end());
    size_t offset = 0;
    for (const auto& [begin, end] : taken)
      if (offset + size(i) > begin) offset = std::max(offset, end);
    placement.offsets[i] = offset;
    placement.total = std::max(placement.total, offset + size(i));
    placed.push_back(i);
  }
  return placement;
}

}  // namespace bonfire::runtime
