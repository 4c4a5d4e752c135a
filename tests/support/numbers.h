#pragma once
// A variable of some numbers.

#include <vector>

#include "bonfire/graph/variable.h"

namespace bonfire::testing {

inline Variable numbers(const std::vector<float>& values) {
  return Variable::from<float>(values, {static_cast<int64_t>(values.size())});
}

}  // namespace bonfire::testing
