#pragma once
// Convolutions whose every group has one input channel, computed directly. Private to backend/cpu; the contracts are
// those of convolution_core.h.

#include "bonfire/backend/cpu/convolution/convolution_core.h"

namespace bonfire::cpu {

size_t depthwise_workspace(const Convolution& c, int threads);
void depthwise_forward(const Convolution& c, const void* x, const void* weight, const void* bias, Activation activation,
                       void* y, std::span<std::byte> workspace, ThreadPool& pool);
void depthwise_backward_data(const Convolution& c, const void* dy, const void* weight, bool accumulate, void* dx,
                             std::span<std::byte> workspace, ThreadPool& pool);
void depthwise_backward_weight(const Convolution& c, const void* x, const void* dy, bool accumulate, void* dweight,
                               ThreadPool& pool);

}  // namespace bonfire::cpu
