#include "bonfire/ops/bit_hash.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/ops/checks.h"

namespace bonfire {

namespace {

OutputSpecs infer(const InferContext& context) {
  for (const TensorSpec* spec : context.inputs)
    if (spec->device != context.input(0).device)
      throw_error<ShapeError>("[bit_hash] the tensors live on several devices, expected one ({})",
                              describe_inputs(context));
  return {{{static_cast<int64_t>(context.inputs.size())}, DType::i64, context.input(0).device}};
}

const Op& bit_hash_op = register_op({.name = "bit_hash", .infer = infer});

}  // namespace

Tensor bit_hash(std::span<const Tensor> tensors) {
  if (tensors.empty()) throw_error<ShapeError>("[bit_hash] there are no tensors; expected at least one");
  require_defined("bit_hash", "tensor", tensors);
  return trace_op(bit_hash_op, tensors);
}

}  // namespace bonfire
