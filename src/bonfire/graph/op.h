#pragma once
// Op: what an operation is, apart from how any device computes it. An op family's file in ops/ registers its ops:
//
//   const Op& tanh_op = register_op({.name = "tanh", .infer = same_as_input, .gradient = tanh_gradient,
//                                    .traits = Trait::elementwise});
//   Tensor tanh(const Tensor& x) { return trace_op(tanh_op, {x}); }

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "bonfire/base/inline_vector.h"
#include "bonfire/graph/attributes.h"
#include "bonfire/graph/tensor.h"
#include "bonfire/tensor/storage.h"

namespace bonfire {

struct Op;
struct ShardContext;
struct ShardAnswer;

// What a shape rule sees. It returns the outputs' specs or throws a ShapeError that names the op and the shapes.
struct InferContext {
  const Op& op;
  std::span<const TensorSpec* const> inputs;
  const Attributes& attributes;

  const TensorSpec& input(size_t i) const { return *inputs[i]; }
};
using OutputSpecs = base::InlineVector<TensorSpec, 1>;
using InferRule = OutputSpecs (*)(const InferContext&);

// What a gradient rule sees: the node's inputs and outputs as values, and the gradient of each output. It returns one
// tensor per input; an undefined tensor means "no gradient". It is built from ops, so it knows no device.
class GradientContext {
 public:
  GradientContext(const Node& node, std::span<const Tensor> output_gradients)
      : node_(node), output_gradients_(output_gradients) {}

  Tensor input(size_t i) const;
  Tensor output(size_t i = 0) const;
  // The gradient of output i; undefined when nothing flowed into it (then at least one other is defined).
  const Tensor& gradient(size_t i = 0) const { return output_gradients_[i]; }
  bool needs(size_t i) const;  // whether input i wants a gradient
  size_t input_count() const;
  const TensorSpec& input_spec(size_t i) const;
  const Attributes& attributes() const;

 private:
  const Node& node_;
  std::span<const Tensor> output_gradients_;
};
using Tensors = base::InlineVector<Tensor, 3>;
using GradientRule = Tensors (*)(const GradientContext&);
// How the op computes on parts of values (graph/sharding.h). Nothing: on whole ones.
using ShardRule = std::optional<ShardAnswer> (*)(const ShardContext&);

// What general passes ask of an op, and not its name. A fusion matches the ops that it fuses.
struct Trait {
  // NOLINTBEGIN(readability-identifier-naming): read as words, Trait::view
  static constexpr uint32_t elementwise = 1;  // each output element depends on the inputs' element there (broadcast)
  static constexpr uint32_t reduction = 2;
  static constexpr uint32_t view = 4;           // the same elements under another shape, in row-major order
  static constexpr uint32_t collective = 8;     // several ranks compute it together, each of which has such a node
  static constexpr uint32_t random = 16;        // never merged with an equal node
  static constexpr uint32_t stateful = 32;      // has an effect: never merged, never removed
  static constexpr uint32_t constant = 64;      // no inputs, always the same value
  static constexpr uint32_t cheap = 128;        // worth computing again in the backward pass instead of keeping
  static constexpr uint32_t one_by_one = 256;   // output i is made of input i, has its shape, and lies as it lies
  static constexpr uint32_t placeholder = 512;  // a pass puts others in its place: graph/sliced_value.h
  // NOLINTEND(readability-identifier-naming)
};

// How mixed precision treats an op (gradient ops are ops like any other).
enum class AmpRule : uint8_t {
  follow,  // runs in whatever its inputs have; mixed inputs are promoted
  low,     // gains from bf16: float inputs are cast down
  full     // must stay in f32: low inputs are cast up
};

struct Op {
  std::string name;
  InferRule infer = nullptr;
  GradientRule gradient = nullptr;  // absent: reaching it in a backward pass is a clear error
  ShardRule shard = nullptr;        // absent: what ranks have parts of is gathered for it
  uint32_t traits = 0;
  AmpRule amp = AmpRule::follow;
  AmpRule (*amp_of)(const Attributes&) = nullptr;  // where it differs from node to node: instead of `amp`
  uint32_t amp_keeps = 0;         // bit i: whatever the rule, input i keeps its type (sums that must not lose bits)
  int elementwise_function = -1;  // ElementwiseFunction of ops/elementwise_functions.h, for those that can be fused
  int id = 0;                     // set by register_op, dense

  bool has(uint32_t trait) const { return (traits & trait) != 0; }
};

// Makes an op known for the life of the program. A second op of that name is an error.
const Op& register_op(Op op);
const Op& find_op(std::string_view name);  // ConfigError with the nearest name when there is none
const Op& op_of_id(int id);                // Op::id

// A tensor in the list of an op's inputs: not a copy, which would count its holders up and down.
struct OpInput {
  OpInput(const Tensor& tensor) : value(tensor.value()) {}
  const Value& value;
};

// Appends a node to this thread's trace and returns its outputs. Shape errors are thrown here, by the user's own call.
Tensor trace_op(const Op& op, std::initializer_list<OpInput> inputs, Attributes attributes = {});
Tensor trace_op(const Op& op, std::span<const Tensor> inputs, Attributes attributes = {});
Tensors trace_op_all(const Op& op, std::initializer_list<OpInput> inputs, Attributes attributes = {});
Tensors trace_op_all(const Op& op, std::span<const Tensor> inputs, Attributes attributes = {});

// "f32 [2, 3] cpu:0, f32 [4] cpu:0": for messages.
std::string describe_inputs(const InferContext& context);

}  // namespace bonfire
