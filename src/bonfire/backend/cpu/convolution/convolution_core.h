#pragma once
// Two-dimensional convolutions and their gradients on raw memory, as products whose operands are packed straight from
// image patches (implicit GEMM; gemm_driver.h).
//
//   Convolution c{.batch = 64, .in_channels = 1, .in_height = 28, .in_width = 28, .out_channels = 20,
//                 .kernel_height = 5, .kernel_width = 5};
//   std::vector<std::byte> workspace(convolution_workspace(c, ConvolutionPass::forward, pool.size()));
//   convolution_forward(c, x, weight, bias, Activation::relu, y, workspace, pool);
//
// Sums are f32 for f32 and bf16, f64 for f64. The same convolution gives the same bits on every run and with any number
// of threads. Nothing large is allocated: the caller brings the workspace.

#include <cstddef>
#include <cstdint>
#include <span>

#include "bonfire/backend/cpu/gemm/gemm_kernel.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

// Logical shapes: x [batch, in_channels, in_height, in_width], weight [out_channels, in_channels / groups,
// kernel_height, kernel_width], y [batch, out_channels, out_height, out_width]. In memory all three are row-major, or,
// with channels_last, have their second axis last.
struct Convolution {
  int64_t batch = 1;
  int64_t in_channels = 1, in_height = 1, in_width = 1;
  int64_t out_channels = 1;
  int64_t kernel_height = 1, kernel_width = 1;
  int64_t stride_height = 1, stride_width = 1;
  int64_t padding_height = 0, padding_width = 0;  // on both sides
  int64_t dilation_height = 1, dilation_width = 1;
  int64_t groups = 1;
  bool channels_last = false;
  DType type = DType::f32;             // of x, weight, y, bias and dx: f32, bf16 or f64
  DType weight_gradient = DType::f32;  // of dweight: as `type`, or f32 or bf16 freely

  int64_t out_height() const;  // 0 when the kernel does not fit
  int64_t out_width() const;
};

enum class ConvolutionPass : uint8_t { forward, backward_data, backward_weight };

// What other implementations do to results on their way to memory: y = relu(x * weight + bias + residual), each of the
// three where wanted. Numbers are of the convolution's type.
struct ConvolutionEpilogue {
  const void* bias = nullptr;      // [out_channels]
  const void* residual = nullptr;  // as y
  bool relu = false;
};

// Bytes of workspace for a pool of `threads`.
size_t convolution_workspace(const Convolution& c, ConvolutionPass pass, int threads);

// Every channel is a group of its own. Such convolutions are no products, and add no residual.
bool is_depthwise(const Convolution& c);

// y = activation(x * weight + bias + residual); bias [out_channels] and residual (as y, not overlapping it) may be
// null.
void convolution_forward(const Convolution& c, const void* x, const void* weight, const void* bias,
                         Activation activation, void* y, std::span<std::byte> workspace, ThreadPool& pool,
                         const void* residual = nullptr);

// dx = gradient by x (dx += with accumulate).
void convolution_backward_data(const Convolution& c, const void* dy, const void* weight, bool accumulate, void* dx,
                               std::span<std::byte> workspace, ThreadPool& pool);

// dweight = gradient by weight (dweight += with accumulate).
void convolution_backward_weight(const Convolution& c, const void* x, const void* dy, bool accumulate, void* dweight,
                                 std::span<std::byte> workspace, ThreadPool& pool);

}  // namespace bonfire::cpu
