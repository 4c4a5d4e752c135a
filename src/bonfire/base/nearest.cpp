#include "bonfire/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace bonfire::base {

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  auto closer = [&](const std::string& a, const std::string& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  };
  auto found = std::min_element(candidates.begin(), candidates.end(), closer);
  return found == candidates.end() ? std::string() : *found;
}

}  // namespace bonfire::base
