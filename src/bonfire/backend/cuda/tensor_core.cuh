#pragma once
// One step of the tensor cores: 16 × 8 sums of products of 16 pairs of bf16 numbers, as a warp holds them. With
// group = lane / 4 and thread = lane % 4:
//   a[0]: row group,     depth 2 thread and the next      b0: column group, depth 2 thread and the next
//   a[1]: row group + 8, the same depth                   b1: column group, depth 2 thread + 8 and the next
//   a[2], a[3]: the same rows, depth + 8
//   c[0], c[1]: row group, columns 2 thread and the next; c[2], c[3]: row group + 8

#include <cuda_bf16.h>

namespace bonfire::cuda {

__device__ inline unsigned pack_pair(__nv_bfloat16 low, __nv_bfloat16 high) {
  return __bfloat16_as_ushort(low) | static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
}

__device__ inline void multiply_tile(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace bonfire::cuda
