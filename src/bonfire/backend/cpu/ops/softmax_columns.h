#pragma once
// How softmax and cross-entropy see a tensor: [outer, length, inner], with one distribution along `length` for each
// pair of outer and inner index. Neighbouring inner indices are worked on together, as columns of a block. Private to
// backend/cpu.

#include <algorithm>

#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/base/vector_math.h"

namespace bonfire::cpu {
inline namespace BONFIRE_COMPILED_SET {

using base::quick_exponential;

inline constexpr int64_t kColumns = 64;  // of a block

struct SoftmaxShape {
  int64_t outer = 1, length = 1, inner = 1;

  SoftmaxShape(const Shape& shape, int axis) : length(shape[axis]) {
    for (int i = 0; i < axis; ++i) outer *= shape[i];
    for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  }

  // Calls body(first element, first row, columns) for all blocks, on all threads. Rows are counted over [outer, inner].
  template <class Body>
  void for_each_block(ThreadPool& threads, const Body& body) const {
    int64_t blocks = (inner + kColumns - 1) / kColumns;
    int64_t work = std::max<int64_t>(1, length * std::min(inner, kColumns));
    threads.parallel_for(outer * blocks, std::max<int64_t>(1, 4096 / work), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        int64_t o = task / blocks, column = task % blocks * kColumns;
        body(o * length * inner + column, o * inner + column, std::min(kColumns, inner - column));
      }
    });
  }
};

// Of each column x[i * stride + j], i < length: the largest element, and Σ exp(x − largest).
template <class T, class Acc = Compute<T>>
void softmax_statistics(const T* x, int64_t length, int64_t stride, int64_t columns, Acc* largest, Acc* sum) {
  if (stride == 1) {
    largest[0] = row_max<Acc>(length, [&](int64_t i) { return static_cast<Acc>(x[i]); });
    sum[0] = row_sum<Acc>(length, [&](int64_t i) { return quick_exponential(static_cast<Acc>(x[i]) - largest[0]); });
    return;
  }
  std::fill_n(largest, columns, -std::numeric_limits<Acc>::infinity());
  std::fill_n(sum, columns, Acc(0));
  for (int64_t i = 0; i < length; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      Acc value = static_cast<Acc>(x[i * stride + j]);
      largest[j] = value > largest[j] ? value : largest[j];
    }
  for (int64_t i = 0; i < length; ++i)
    for (int64_t j = 0; j < columns; ++j) sum[j] += quick_exponential(static_cast<Acc>(x[i * stride + j]) - largest[j]);
}

}  // namespace BONFIRE_COMPILED_SET
}  // namespace bonfire::cpu
