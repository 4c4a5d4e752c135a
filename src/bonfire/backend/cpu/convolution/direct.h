#pragma once
// Direct convolutions of channels-last f32 or bf16 images on raw memory, where products of matrices are a poor fit:
// over very few input channels (the first layer of a network; forward and the gradient by the weight) and depthwise
// (all passes). Sums are f32. Contracts are those of convolution_core.h: the same bits on every run and with any number
// of threads.

#include <cstddef>
#include <span>

#include "bonfire/backend/cpu/convolution/convolution_core.h"

namespace bonfire::cpu {

bool direct_serves(const Convolution& c, ConvolutionPass pass);

// Bytes of workspace for a pool of `threads`.
size_t direct_workspace(const Convolution& c, ConvolutionPass pass, int threads);

void direct_forward(const Convolution& c, const void* x, const void* weight, const ConvolutionEpilogue& epilogue,
                    void* y, std::span<std::byte> workspace, ThreadPool& pool);

void direct_backward_data(const Convolution& c, const void* dy, const void* weight, void* dx,
                          std::span<std::byte> workspace, ThreadPool& pool);

void direct_backward_weight(const Convolution& c, const void* x, const void* dy, void* dweight,
                            std::span<std::byte> workspace, ThreadPool& pool);

}  // namespace bonfire::cpu
