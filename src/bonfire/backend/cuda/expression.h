#pragma once
// An elementwise computation as a CUDA kernel: one op, or a chain that fusion made one. Each thread computes a few
// neighbouring elements; operands smaller than the result are broadcast by strides.

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "bonfire/kernel/kernel.h"
#include "bonfire/ops/elementwise_program.h"

namespace bonfire::cuda {

struct Expression {
  ElementwiseProgram program;
  std::vector<DType> inputs;   // of each input
  DType compute = DType::f32;  // f32, f64 or i64

  static Expression of(const GraphNode& node);
};

// How one run walks through memory: extents of the result from slowest to fastest, neighbours that can be merged
// merged, and the stride of each input along them (0 where it is broadcast), in elements.
struct Walk {
  static constexpr int kMaxRank = Shape::kMaxRank;

  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // [input][axis]
  int width = 1;                              // elements a thread computes at once, along the last axis
};
Walk plan_walk(const Expression& expression, const Layout& layout, const std::vector<Shape>& input_shapes,
               const std::vector<Layout>& input_layouts);

std::string generate_source(const Expression& expression, const Walk& walk);

// Compiled when made.
std::unique_ptr<Kernel> make_expression_kernel(const Expression& expression, const Walk& walk);

// activation(y + bias + residual), in place: what follows a product or convolution whose library has no epilogue for
// it. Its inputs are y and then those of bias and residual that there are.
struct BiasAct {
  Shape shape;  // of y
  DType dtype = DType::f32;
  Layout layout;                     // of y and the residual
  const DType* bias_type = nullptr;  // null without a bias
  Shape bias_shape;                  // broadcasts to y's
  bool residual = false;
  int activation = -1;  // or an ElementwiseFunction
};
std::unique_ptr<Kernel> make_bias_act_kernel(const BiasAct& what);

}  // namespace bonfire::cuda
