#include "bonfire/ops/checks.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/elementwise_functions.h"

namespace bonfire {

void require_one_device(const InferContext& context) {
  for (const TensorSpec* input : context.inputs)
    if (input->device != context.input(0).device)
      throw_error<ShapeError>("[{}] inputs live on different devices ({}); move one with to(device)", context.op.name,
                              describe_inputs(context));
}

void require_floating(const InferContext& context, size_t input, const char* role) {
  if (!is_floating(context.input(input).dtype))
    throw_error<ShapeError>("[{}] {} must have a floating type, inputs are ({}); convert it with to(dtype)",
                            context.op.name, role, describe_inputs(context));
}

void require_rank(const InferContext& context, size_t input, const char* role, int rank) {
  if (context.input(input).shape.rank() != rank)
    throw_error<ShapeError>("[{}] {} has rank {}, expected {} (inputs are {})", context.op.name, role,
                            context.input(input).shape.rank(), rank, describe_inputs(context));
}

void require_shape(const InferContext& context, size_t input, const char* role, const Shape& shape) {
  if (!(context.input(input).shape == shape))
    throw_error<ShapeError>("[{}] {} has shape {}, expected {} (inputs are {})", context.op.name, role,
                            to_string(context.input(input).shape), to_string(shape), describe_inputs(context));
}

void require_dtype(const InferContext& context, size_t input, const char* role, DType dtype) {
  if (context.input(input).dtype != dtype)
    throw_error<ShapeError>("[{}] {} is {}, expected {} (inputs are {}); convert it with to(dtype)", context.op.name,
                            role, name_of(context.input(input).dtype), name_of(dtype), describe_inputs(context));
}

void require_bias_type(const InferContext& context, size_t input, DType result) {
  bool wider = context.input(input).dtype == DType::f32 && result != DType::f64;
  if (!wider) require_dtype(context, input, "bias", result);
}

void require_activation(const InferContext& context) {
  using F = ElementwiseFunction;
  int64_t activation = context.attributes.integer("activation");
  for (F function : {F::relu, F::gelu, F::gelu_tanh, F::tanh, F::sigmoid, F::silu})
    if (activation == static_cast<int64_t>(function)) return;
  if (activation != -1)
    throw_error<ShapeError>(
        "[{}] cannot apply elementwise function {} to its result; use relu, gelu, gelu_tanh, tanh, "
        "sigmoid, silu or -1 for none",
        context.op.name, activation);
}

namespace {
[[noreturn]] void fail_undefined(std::string_view call, std::string_view role) {
  throw_error<GraphError>("[{}] {} is an undefined tensor{}; give it a value first", call, role, in_current_module());
}
}  // namespace

void require_defined(std::string_view call, std::initializer_list<Argument> arguments) {
  for (const auto& [role, tensor] : arguments)
    if (!tensor.defined()) fail_undefined(call, role);
}

void require_defined(std::string_view call, const char* role, std::span<const Tensor> list) {
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].defined()) fail_undefined(call, fmt::format("{} {}", role, i));
}

Shape window_pair(const char* op, const char* what, const Shape& given, int64_t least) {
  Shape pair = given.rank() == 1 ? Shape{given[0], given[0]} : given;
  if (pair.rank() != 2 || pair[0] < least || pair[1] < least)
    throw_error<ShapeError>("[{}] {} is {}, expected one or two numbers of at least {}", op, what, to_string(given),
                            least);
  return pair;
}

}  // namespace bonfire
