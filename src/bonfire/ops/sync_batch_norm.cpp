#include "bonfire/ops/sync_batch_norm.h"

#include "bonfire/ops/checks.h"

namespace bonfire {
namespace {

// Two inputs S [C], the same.
void require_pair(const InferContext& context, const char* first, const char* second) {
  require_one_device(context);
  require_floating(context, 0, first);
  require_rank(context, 0, first, 1);
  require_shape(context, 1, second, context.input(0).shape);
  require_dtype(context, 1, second, context.input(0).dtype);
}

void require_moments(const InferContext& context, size_t input, const char* role) {
  require_rank(context, input, role, 1);
  require_dtype(context, input, role, DType::f64);
}

TensorSpec numbers(const InferContext& context, int64_t count, DType dtype) {
  return {{count}, dtype, context.input(0).device};
}

OutputSpecs infer_moments(const InferContext& context) {
  require_pair(context, "mean", "variance");
  return {numbers(context, 2 * context.input(0).shape[0] + 1, DType::f64)};
}

OutputSpecs infer_joint_statistics(const InferContext& context) {
  require_moments(context, 0, "moments");
  TensorSpec statistic = numbers(context, context.input(0).shape[0] / 2, context.attributes.dtype("dtype"));
  return {statistic, statistic, statistic};
}

OutputSpecs infer_gradient_moments(const InferContext& context) {
  require_pair(context, "sum_dy", "sum_dy_xhat");
  return {numbers(context, 2 * context.input(0).shape[0], DType::f64)};
}

OutputSpecs infer_joint_sums(const InferContext& context) {
  require_one_device(context);
  require_moments(context, 0, "gradient moments");
  require_moments(context, 1, "moments");
  require_shape(context, 1, "moments", {context.input(0).shape[0] + 1});
  TensorSpec sum = numbers(context, context.input(0).shape[0] / 2, context.attributes.dtype("dtype"));
  return {sum, sum};
}

const Op& moments_op = register_op({.name = "batch_norm_moments", .infer = infer_moments});
const Op& joint_statistics_op = register_op({.name = "batch_norm_joint_statistics", .infer = infer_joint_statistics});
const Op& gradient_moments_op = register_op({.name = "batch_norm_gradient_moments", .infer = infer_gradient_moments});
const Op& joint_sums_op = register_op({.name = "batch_norm_joint_sums", .infer = infer_joint_sums});

}  // namespace

const Op& batch_norm_moments_op() { return moments_op; }
const Op& batch_norm_joint_statistics_op() { return joint_statistics_op; }
const Op& batch_norm_gradient_moments_op() { return gradient_moments_op; }
const Op& batch_norm_joint_sums_op() { return joint_sums_op; }

}  // namespace bonfire
