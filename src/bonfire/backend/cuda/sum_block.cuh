#pragma once

namespace bonfire::cuda {

// Σ over the block's `threads` (whole warps), for every thread.
template <int threads, class T>
__device__ inline T sum_block(T value) {
  __shared__ T shared[threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffU, value, distance);
  __syncthreads();  // an earlier sum has been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  for (int i = 0; i < threads / 32; ++i) sum += shared[i];
  return sum;
}

}  // namespace bonfire::cuda
