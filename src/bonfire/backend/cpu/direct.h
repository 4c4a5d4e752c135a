#pragma once
// Direct convolutions of channels-last f32 images on raw memory, where products of matrices are a poor fit: over very
// few input channels (the first layer of a network; forward and the gradient by the weight) and depthwise (all passes).
// Contracts are those of convolution_core.h: the same bits on every run and with any number of threads.

#include <cstddef>
#include <span>

#include "bonfire/backend/cpu/convolution_core.h"

namespace bonfire::cpu {

bool direct_serves(const Convolution& c, ConvolutionPass pass);

// Bytes of workspace for a pool of `threads`.
size_t direct_workspace(const Convolution& c, ConvolutionPass pass, int threads);

void direct_forward(const Convolution& c, const float* x, const float* weight, const ConvolutionEpilogue& epilogue,
                    float* y, std::span<std::byte> workspace, ThreadPool& pool);

void direct_backward_data(const Convolution& c, const float* dy, const float* weight, float* dx,
                          std::span<std::byte> workspace, ThreadPool& pool);

void direct_backward_weight(const Convolution& c, const float* x, const float* dy, float* dweight,
                            std::span<std::byte> workspace, ThreadPool& pool);

}  // namespace bonfire::cpu
