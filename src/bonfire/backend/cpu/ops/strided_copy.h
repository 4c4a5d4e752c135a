#pragma once
// Copying elements between two strided views of host memory: what permute, broadcast_to, concat, split and slice are
// made of. Built once from shapes and strides, then run many times.

#include <cstdint>

#include "bonfire/base/thread_pool.h"
#include "bonfire/tensor/shape.h"

namespace bonfire::cpu {

class StridedCopy {
 public:
  // Strides are in elements of `element_bytes` (1, 2, 4 or 8); those of the source may be 0. Target elements must be
  // distinct.
  StridedCopy(const Shape& shape, const Shape& source_strides, const Shape& target_strides, size_t element_bytes);

  void run(const void* source, void* target, ThreadPool& threads) const;

 private:
  template <class T>
  void copy_rows(const T* source, T* target, ThreadPool& threads) const;
  template <class T>
  void copy_tiles(const T* source, T* target, ThreadPool& threads) const;

  struct Axis {
    int64_t extent = 1, source_stride = 1, target_stride = 1;
  };
  struct Axes {
    Shape extents, source_strides, target_strides;
    void push_back(const Axis& axis);
  };

  size_t element_bytes_;
  Axes outer_;              // all but the two below
  Axis row_;                // innermost in the target
  Axis column_;             // innermost in the source, when that is another axis
  bool transpose_ = false;  // whether it is
};

}  // namespace bonfire::cpu
