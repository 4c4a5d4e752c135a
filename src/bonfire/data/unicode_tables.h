#pragma once
// What unicode.cpp looks up; sorted by code point.

#include <cstddef>
#include <cstdint>

namespace bonfire::data::unicode {

struct Range {
  uint32_t first, last;
};

// `count` code points from `first` on, `step` apart: the first becomes `target`, the others as much further on.
struct Fold {
  uint32_t first;
  uint16_t count, step;
  uint32_t target;
};

struct LongFold {
  uint32_t from;
  uint32_t to[3];  // 0: no more
};

// Categories Mn; P*; Cc, Cf and Co; Zs; L*; N*.
extern const Range marks[], punctuation[], controls[], spaces[], letters[], numbers[];
extern const Fold folds[];
extern const LongFold long_folds[];
extern const size_t marks_count, punctuation_count, controls_count, spaces_count, letters_count, numbers_count;
extern const size_t folds_count, long_folds_count;

}  // namespace bonfire::data::unicode
