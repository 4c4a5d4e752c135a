#pragma once
// An elementwise computation as a CUDA kernel: one op, or a chain that fusion made one. Each thread computes a few
// neighbouring elements; operands smaller than the result are broadcast by strides.

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "bonfire/kernel/kernel.h"
#include "bonfire/ops/elementwise_functions.h"

namespace bonfire::cuda {

// Values are numbered: inputs first, then one per instruction.
struct Instruction {
  ElementwiseFunction function;
  std::vector<int> operands;
  DType result;  // what the function's result would be stored as; decides the type it is computed in
};

struct Expression {
  std::vector<DType> inputs;
  std::vector<Instruction> instructions;
  std::vector<int> outputs;  // values; each stored as its dtype
  std::vector<DType> output_types;
};

// How one run walks through memory: extents of the result from slowest to fastest, neighbours that can be merged
// merged, and the stride of each input along them (0 where it is broadcast), in elements.
struct Walk {
  static constexpr int kMaxRank = Shape::kMaxRank;

  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // [input][axis]
  int width = 1;                              // elements a thread computes at once, along the last axis
};
Walk plan_walk(const Shape& shape, const Layout& layout, const std::vector<Shape>& input_shapes,
               const std::vector<Layout>& input_layouts, const Expression& expression);

std::string generate_source(const Expression& expression, const Walk& walk);

// Compiled when made.
std::unique_ptr<Kernel> make_expression_kernel(const Expression& expression, const Walk& walk);

}  // namespace bonfire::cuda
