#include "bonfire/base/glob.h"

#include <algorithm>

namespace bonfire::base {

bool matches(std::string_view pattern, std::string_view path) {
  size_t star = std::string_view::npos, resume = 0, p = 0, t = 0;  // of the last `*`, and what it ends before
  while (t < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == path[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return std::ranges::all_of(pattern.substr(p), [](char c) { return c == '*'; });
}

}  // namespace bonfire::base
