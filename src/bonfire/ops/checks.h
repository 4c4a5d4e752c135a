#pragma once
// Checks that ops share. Those of shape rules throw a ShapeError that names the op and describes all its inputs.

#include <initializer_list>

#include "bonfire/graph/node.h"

namespace bonfire {

void require_one_device(const InferContext& context);
void require_floating(const InferContext& context, size_t input, const char* role);
void require_rank(const InferContext& context, size_t input, const char* role, int rank);
void require_shape(const InferContext& context, size_t input, const char* role, const Shape& shape);
void require_dtype(const InferContext& context, size_t input, const char* role, DType dtype);
// The bias of a fused op: of the result's type, or f32 beside a narrower one.
void require_bias_type(const InferContext& context, size_t input, DType result);
// The attribute `activation` is -1 (none) or an ElementwiseFunction that fused kernels can apply to their result:
// relu, gelu, gelu_tanh, tanh, sigmoid, silu.
void require_activation(const InferContext& context);

// For calls that look at their arguments before they trace an op, which checks its inputs by itself: a GraphError that
// names the call, the argument and the module.
struct Argument {
  const char* role;
  const Tensor& tensor;
};
void require_defined(std::string_view call, std::initializer_list<Argument> arguments);
void require_defined(std::string_view call, const char* role, std::span<const Tensor> list);  // each of them

// {h, w} from one number or two, none below `least`.
Shape window_pair(const char* op, const char* what, const Shape& given, int64_t least);

}  // namespace bonfire
