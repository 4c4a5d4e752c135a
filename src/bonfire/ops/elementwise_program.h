#pragma once
// ElementwiseProgram: a chain of elementwise functions that runs as one kernel. A single elementwise op is a program of
// one instruction, so backends implement only this.

#include <span>
#include <string>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/ops/elementwise_functions.h"

namespace bonfire {

struct ElementwiseInstruction {
  ElementwiseFunction function;
  // Operands: i < inputs is input i, otherwise the result of instruction i - inputs. -1 beyond the arity.
  int operand[3] = {-1, -1, -1};
};

struct ElementwiseProgram {
  int inputs = 0;
  std::vector<ElementwiseInstruction> instructions;
  std::vector<int> results;  // for each output: an instruction
  Shape shape;               // of every output; inputs broadcast to it
  std::vector<DType> types;  // of each output

  std::vector<int64_t> encode() const;  // as the attribute "program" of fused_elementwise
  static ElementwiseProgram decode(std::span<const int64_t> words);
};

int arity(ElementwiseFunction function);
std::string_view name_of(ElementwiseFunction function);

// Of any node with Trait::elementwise, fused or not.
ElementwiseProgram program_of(const GraphNode& node);

// The type in which the program computes: f64 if a float operand is f64, f32 for other floats, i64 for integers only.
DType compute_type(const GraphNode& node);

// `fused_elementwise`: attribute program. Its outputs are the program's.
const Op& fused_elementwise_op();

}  // namespace bonfire
