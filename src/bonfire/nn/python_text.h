#pragma once
// How the tree of a model shows sizes of windows, as PyTorch does: {2} and {2, 2} are "(2, 2)".

#include <fmt/core.h>

#include <string>

#include "bonfire/tensor/shape.h"

namespace bonfire::nn {

inline std::string window_text(const Shape& window) {
  return window.rank() == 0 ? "()" : fmt::format("({}, {})", window[0], window[-1]);
}

}  // namespace bonfire::nn
