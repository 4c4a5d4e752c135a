#pragma once
// Moves elements from one arrangement to another: the kernel of reorders, permutations, slices and concatenations.

#include <cuda_runtime_api.h>

#include <vector>

#include "bonfire/tensor/shape.h"

namespace bonfire::cuda {

// Element (i0, i1, …) goes from read_offset + Σ i·read to write_offset + Σ i·write, all in elements.
struct StridedCopy {
  Shape extents, read, write;
  int64_t read_offset = 0, write_offset = 0;
  size_t element_bytes = 4;  // 1, 2, 4 or 8
};

// Axes in the order of the target's memory, neighbours merged where both sides allow it, extents of 1 dropped.
StridedCopy simplified(const StridedCopy& copy);

// `copy` as simplified() gives it.
void run_strided_copy(const StridedCopy& copy, const void* source, void* target, cudaStream_t stream);

// Fills `count` elements of `bytes` each (1, 2, 4 or 8) with the low bytes of `pattern`.
void fill_pattern(void* target, uint64_t pattern, size_t bytes, int64_t count, cudaStream_t stream);

}  // namespace bonfire::cuda
