#include "bonfire/ops/elementwise_program.h"

#include "bonfire/base/error.h"

namespace bonfire {

namespace {

OutputSpecs infer_fused(const InferContext& context) {
  ElementwiseProgram program = ElementwiseProgram::decode(context.attributes.list("program"));
  OutputSpecs outputs;
  for (DType type : program.types) outputs.push_back({program.shape, type, context.input(0).device});
  return outputs;
}

const Op& registered_fused_op =
    register_op({.name = "fused_elementwise", .infer = infer_fused, .traits = Trait::elementwise | Trait::cheap});

}  // namespace

int arity(ElementwiseFunction function) {
  static constexpr int kArities[] = {
#define BONFIRE_ARITY(name, arity) arity,
      BONFIRE_ELEMENTWISE_FUNCTIONS(BONFIRE_ARITY)
#undef BONFIRE_ARITY
  };
  return kArities[static_cast<int>(function)];
}

std::string_view name_of(ElementwiseFunction function) {
  static constexpr std::string_view kNames[] = {
#define BONFIRE_TEXT(name, arity) #name,
      BONFIRE_ELEMENTWISE_FUNCTIONS(BONFIRE_TEXT)
#undef BONFIRE_TEXT
  };
  return kNames[static_cast<int>(function)];
}

std::vector<int64_t> ElementwiseProgram::encode() const {
  std::vector<int64_t> words{inputs, static_cast<int64_t>(instructions.size()), static_cast<int64_t>(results.size()),
                             shape.rank()};
  for (int64_t extent : shape) words.push_back(extent);
  for (const ElementwiseInstruction& instruction : instructions) {
    words.push_back(static_cast<int64_t>(instruction.function));
    for (int operand : instruction.operand) words.push_back(operand);
  }
  for (int result : results) words.push_back(result);
  for (DType type : types) words.push_back(static_cast<int64_t>(type));
  return words;
}

ElementwiseProgram ElementwiseProgram::decode(std::span<const int64_t> words) {
  ElementwiseProgram program;
  size_t at = 0;
  auto next = [&] { return words[at++]; };
  program.inputs = static_cast<int>(next());
  int64_t instructions = next(), results = next(), rank = next();
  for (int64_t i = 0; i < rank; ++i) program.shape.push_back(next());
  for (int64_t i = 0; i < instructions; ++i) {
    ElementwiseInstruction instruction{static_cast<ElementwiseFunction>(next())};
    for (int& operand : instruction.operand) operand = static_cast<int>(next());
    program.instructions.push_back(instruction);
  }
  for (int64_t i = 0; i < results; ++i) program.results.push_back(static_cast<int>(next()));
  for (int64_t i = 0; i < results; ++i) program.types.push_back(static_cast<DType>(next()));
  return program;
}

ElementwiseProgram program_of(const GraphNode& node) {
  if (node.op == &fused_elementwise_op()) return ElementwiseProgram::decode(node.attributes.list("program"));
  BONFIRE_CHECK(node.op->elementwise_function >= 0, "{} is not elementwise", node.name());
  ElementwiseProgram program;
  program.inputs = static_cast<int>(node.inputs.size());
  ElementwiseInstruction instruction{static_cast<ElementwiseFunction>(node.op->elementwise_function)};
  for (int i = 0; i < program.inputs; ++i) instruction.operand[i] = i;
  program.instructions.push_back(instruction);
  program.results = {0};
  program.shape = node.outputs[0].shape;
  program.types = {node.outputs[0].dtype};
  return program;
}

DType compute_type(const GraphNode& node) {
  bool any_float = false;
  auto consider = [&](DType dtype) { any_float |= is_floating(dtype); };
  for (const GraphValue& input : node.inputs) {
    consider(input.spec().dtype);
    if (input.spec().dtype == DType::f64) return DType::f64;
  }
  for (const TensorSpec& output : node.outputs) {
    consider(output.dtype);
    if (output.dtype == DType::f64) return DType::f64;
  }
  return any_float ? DType::f32 : DType::i64;
}

const Op& fused_elementwise_op() { return registered_fused_op; }

}  // namespace bonfire
