#pragma once
// Sums, means and maxima of what several ranks hold: the arithmetic of every backend.
//
//   reduce_values({a, b, c}, {a, b, c}, count, DType::bf16, {Reduce::mean, 3});    // each now holds the mean
//
// Sources are combined in the order given. bf16 and f16 are summed in f32 and rounded once; integers wrap around;
// a boolean sum is "any of them"; a maximum with a NaN among its values is NaN.

#include <cstddef>
#include <span>
#include <string_view>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

// Reduce::mean divides by `ranks`, which may be more than the sources at hand: partial sums travel along a ring.
struct Reduction {
  Reduce kind = Reduce::sum;
  int ranks = 1;
};

// ConfigError for the mean of integers; `where` is the collective.
void check_reduction(std::string_view where, DType dtype, Reduce kind);

// Each source and each result has `count` elements. A result may be one of the sources, but not overlap it otherwise.
void reduce_values(std::span<const void* const> sources, std::span<void* const> results, size_t count, DType dtype,
                   Reduction reduction);

std::string_view name_of(Reduce kind);

}  // namespace bonfire::comm
