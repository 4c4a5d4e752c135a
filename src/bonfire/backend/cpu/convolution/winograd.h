#pragma once
// Winograd's convolution F(m x m, r x r) and its gradients on raw memory: r x r kernels of stride 1 on channels-last
// f32 or bf16 images, in tiles of m x m results. F(2 x 2, 3 x 3) has 2.25 times fewer multiplications than
// convolution_core.h, F(4 x 4, 3 x 3) 4 times, F(2 x 2, 5 x 5) 2.8 times. All of them are f32, for bf16 too: that pays
// where bf16 is multiplied at most some two times faster.
//
//   if (winograd_serves(c, 4)) {
//     std::vector<std::byte> workspace(winograd_workspace(c, ConvolutionPass::forward, 4, pool.size()));
//     winograd_forward(c, 4, x, weight, {.bias = bias, .relu = true}, y, workspace, pool);
//   }
//
// Rounding errors, relative to the norm of the result, are about 3e-7 for F(2 x 2, 3 x 3) and 1e-6 for the others;
// bf16 is rounded once, at the end. Results that are zero because all that they are made of is zero come out as zero
// (winograd_zeros.h), unless they are said not to matter. The same convolution gives the same bits on every run and
// with any number of threads. Nothing large is allocated: the caller brings the workspace.

#include <cstddef>
#include <span>

#include "bonfire/backend/cpu/convolution/convolution_core.h"

namespace bonfire::cpu {

enum class Zeros : uint8_t { kept, lost };

bool winograd_serves(const Convolution& c, int tile);

// Bytes of workspace for tiles of `tile` x `tile` results and a pool of `threads`.
size_t winograd_workspace(const Convolution& c, ConvolutionPass pass, int tile, int threads, Zeros zeros = Zeros::kept);

void winograd_forward(const Convolution& c, int tile, const void* x, const void* weight,
                      const ConvolutionEpilogue& epilogue, void* y, std::span<std::byte> workspace, ThreadPool& pool,
                      Zeros zeros = Zeros::kept);

void winograd_backward_data(const Convolution& c, int tile, const void* dy, const void* weight, void* dx,
                            std::span<std::byte> workspace, ThreadPool& pool, Zeros zeros = Zeros::kept);

void winograd_backward_weight(const Convolution& c, int tile, const void* x, const void* dy, void* dweight,
                              std::span<std::byte> workspace, ThreadPool& pool, Zeros zeros = Zeros::kept);

}  // namespace bonfire::cpu
