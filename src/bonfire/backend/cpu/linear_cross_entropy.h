#pragma once
// What the ways to compute a linear layer with its cross-entropy share. Private to backend/cpu/linear_cross_entropy*.
//
// Inputs of the op: x [N, K], weight [V, K], bias [V] perhaps, target [N], the gradient given to the loss. Outputs: the
// loss, dx [N, K], dweight [V, K], dbias [V] perhaps; dweight and dbias are of the type that sums have.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "bonfire/backend/cpu/every_instruction_set.h"
#include "bonfire/backend/cpu/floating.h"
#include "bonfire/base/error.h"
#include "bonfire/base/vector_math.h"
#include "bonfire/ops/loss.h"

namespace bonfire::cpu {

inline namespace BONFIRE_COMPILED_SET {

inline size_t aligned_bytes(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

// The largest logit, and the sum of exponentials of distances to it. One sweep does for logits of common size: their
// exponentials are far from the largest and smallest numbers.
template <class Acc>
Acc summarize_row(const Acc* logits, int64_t classes, Acc& sum) {
  constexpr Acc kCommon = 40;
  Acc sums[kLanes] = {}, most[kLanes];
  std::fill_n(most, kLanes, -std::numeric_limits<Acc>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= classes; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      const Acc logit = logits[i + l];
      sums[l] += base::exponential(logit);
      most[l] = logit > most[l] ? logit : most[l];
    }
  for (int l = 0; i < classes; ++i, ++l) {
    sums[l] += base::exponential(logits[i]);
    most[l] = logits[i] > most[l] ? logits[i] : most[l];
  }
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) {
      sums[l] += sums[l + width];
      most[l] = most[l + width] > most[l] ? most[l + width] : most[l];
    }
  const Acc largest = most[0];
  if (largest > -kCommon && largest < kCommon)
    sum = sums[0] * std::exp(-largest);
  else
    sum = row_sum<Acc>(classes, [&](int64_t j) { return base::exponential(logits[j] - largest); });
  return largest;
}

template <class T>
struct LinearLoss {
  using Acc = Compute<T>;
  int64_t rows, depth, classes;  // N, K, V
  bool has_bias;
  DType bias_type;
  Acc smoothing;
  int64_t ignore_index;
  bool mean;

  explicit LinearLoss(const GraphNode& node)
      : rows(node.inputs[0].spec().shape[0]),
        depth(node.inputs[0].spec().shape[1]),
        classes(node.inputs[1].spec().shape[0]),
        has_bias(node.attributes.flag("has_bias")),
        bias_type(has_bias ? node.inputs[2].spec().dtype : DType::f32),
        smoothing(static_cast<Acc>(node.attributes.number("label_smoothing"))),
        ignore_index(node.attributes.integer("ignore_index")),
        mean(static_cast<Reduction>(node.attributes.integer("reduction")) == Reduction::mean) {}

  const int64_t* target(const Run& run) const { return run.input<int64_t>(has_bias ? 3 : 2); }
  const void* bias(const Run& run) const { return has_bias ? run.inputs[2] : nullptr; }

  // Rows that count, and what the gradient of each is multiplied by.
  int64_t count_targets(const Run& run) const {
    const int64_t* targets = target(run);
    int64_t count = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (targets[row] == ignore_index) continue;
      if (targets[row] < 0 || targets[row] >= classes)
        throw_error<DataError>(
            "[cross_entropy] target {} of row {} is not a class: expected 0 to {}, or {} to ignore it", targets[row],
            row, classes - 1, ignore_index);
      ++count;
    }
    return count;
  }
  Acc given(const Run& run, int64_t count) const {
    const Acc whole = *run.input<Acc>(has_bias ? 4 : 3);
    return mean ? whole / static_cast<Acc>(count) : whole;
  }

  // The loss from those of the rows.
  void finish(const Run& run, const Acc* losses, int64_t count) const {
    double total = 0;
    for (int64_t row = 0; row < rows; ++row) total += static_cast<double>(losses[row]);
    if (mean) total /= static_cast<double>(count);
    *run.output<Acc>(0) = static_cast<Acc>(total);
  }
};

}  // namespace BONFIRE_COMPILED_SET

}  // namespace bonfire::cpu
