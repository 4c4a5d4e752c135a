#pragma once
// How the tree of a model shows the options of its layers, as PyTorch does.

#include <fmt/core.h>

#include <string>

#include "bonfire/tensor/shape.h"

namespace bonfire::nn {

// Of a convolution: always a pair. {2} and {2, 2} are "(2, 2)".
inline std::string window_text(const Shape& window) {
  return window.rank() == 0 ? "()" : fmt::format("({}, {})", window[0], window[-1]);
}

// Of a pooling: as it was given. {2} is "2", {2, 2} is "(2, 2)".
inline std::string window_as_given(const Shape& window) {
  return window.rank() == 1 ? fmt::format("{}", window[0]) : window_text(window);
}

inline const char* python_text(bool value) { return value ? "True" : "False"; }

// A number with a fraction always shows it: 0.1, 1e-05, 1.0
inline std::string python_text(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

}  // namespace bonfire::nn
