#include "bonfire/ops/pooling.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"

namespace bonfire {

int64_t pooled_extent(int64_t extent, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode) {
  int64_t span = extent + 2 * padding - kernel;
  if (span < 0 && !(ceil_mode && span + stride > 0)) return 0;
  int64_t count = (span + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (count - 1) * stride >= extent + padding) --count;
  return count;
}

namespace {

void require_image(const InferContext& context, size_t input, const char* role) {
  require_floating(context, input, role);
  require_rank(context, input, role, 4);
}

// The pooled form of x [N, C, H, W].
Shape pooled_shape(const InferContext& context, const Shape& x) {
  const Attributes& a = context.attributes;
  Shape kernel = a.ints("kernel"), stride = a.ints("stride"), padding = a.ints("padding"), result = x;
  for (int i = 0; i < 2; ++i) {
    if (2 * padding[i] > kernel[i])
      throw_error<ShapeError>("[{}] padding {} is more than half of the kernel {}", context.op.name, to_string(padding),
                              to_string(kernel));
    result[i + 2] = pooled_extent(x[i + 2], kernel[i], stride[i], padding[i], a.flag("ceil_mode"));
    if (result[i + 2] < 1)
      throw_error<ShapeError>("[{}] the kernel {} is larger than the input {} with padding {}", context.op.name,
                              to_string(kernel), to_string(x), to_string(padding));
  }
  return result;
}

Shape with_size(const Shape& image, const Shape& size) { return {image[0], image[1], size[0], size[1]}; }
Shape size_of_image(const Shape& image) { return {image[2], image[3]}; }

OutputSpecs infer_pool(const InferContext& context) {
  require_image(context, 0, "input");
  TensorSpec result = context.input(0);
  result.shape = pooled_shape(context, result.shape);
  return {result};
}

OutputSpecs infer_max_pool_gradient(const InferContext& context) {
  require_one_device(context);
  require_image(context, 1, "input");
  const TensorSpec& x = context.input(1);
  Shape pooled = pooled_shape(context, x.shape);
  for (size_t i : {0, 2}) {
    require_shape(context, i, i == 0 ? "dy" : "output", pooled);
    require_dtype(context, i, i == 0 ? "dy" : "output", x.dtype);
  }
  return {x};
}

OutputSpecs infer_avg_pool_gradient(const InferContext& context) {
  require_image(context, 0, "dy");
  TensorSpec result = context.input(0);
  result.shape = with_size(result.shape, context.attributes.ints("input_size"));
  require_shape(context, 0, "dy", pooled_shape(context, result.shape));
  return {result};
}

// Both directions of the adaptive average: `size` names the attribute with the result's {h, w}.
OutputSpecs infer_adaptive(const InferContext& context, const char* size) {
  require_image(context, 0, "input");
  TensorSpec result = context.input(0);
  result.shape = with_size(result.shape, context.attributes.ints(size));
  for (int i : {2, 3})
    if (context.input(0).shape[i] < 1)
      throw_error<ShapeError>("[{}] input {} has no pixels", context.op.name, to_string(context.input(0).shape));
  return {result};
}
OutputSpecs infer_adaptive_avg_pool(const InferContext& context) { return infer_adaptive(context, "output_size"); }
OutputSpecs infer_adaptive_avg_pool_gradient(const InferContext& context) {
  return infer_adaptive(context, "input_size");
}

Attributes window_attributes(const char* op, const Shape& kernel, const Shape& stride, const Shape& padding,
                             bool ceil_mode) {
  Shape window = window_pair(op, "kernel", kernel, 1);
  Shape step = stride.rank() == 0 ? window : window_pair(op, "stride", stride, 1);
  Shape border = window_pair(op, "padding", padding, 0);
  return {{"kernel", window}, {"stride", step}, {"padding", border}, {"ceil_mode", ceil_mode}};
}

Tensors max_pool_gradient(const GradientContext& c);
Tensors avg_pool_gradient(const GradientContext& c);
Tensors avg_pool_gradient_gradient(const GradientContext& c);
Tensors adaptive_avg_pool_gradient(const GradientContext& c);
Tensors adaptive_avg_pool_gradient_gradient(const GradientContext& c);

ShardRuleResult shard_images(const ShardContext& c) {  // by channels, or by images
  const std::optional<size_t> split = c.first_split();
  if (!split || c.shardings[*split].axis > 1) return {};
  return shard_alike(c, c.shardings[*split]);
}

const Op& make_op(const char* name, InferRule infer, GradientRule gradient) {
  return register_op({.name = name, .infer = infer, .gradient = gradient, .shard = shard_images});
}

const Op& max_pool_op = make_op("max_pool2d", infer_pool, max_pool_gradient);
const Op& max_pool_gradient_op = make_op("max_pool2d_gradient", infer_max_pool_gradient, nullptr);
const Op& avg_pool_op = make_op("avg_pool2d", infer_pool, avg_pool_gradient);
const Op& avg_pool_gradient_op = make_op("avg_pool2d_gradient", infer_avg_pool_gradient, avg_pool_gradient_gradient);
const Op& adaptive_avg_pool_op = make_op("adaptive_avg_pool2d", infer_adaptive_avg_pool, adaptive_avg_pool_gradient);
const Op& adaptive_avg_pool_gradient_op =
    make_op("adaptive_avg_pool2d_gradient", infer_adaptive_avg_pool_gradient, adaptive_avg_pool_gradient_gradient);

Tensors max_pool_gradient(const GradientContext& c) {
  return {trace_op(max_pool_gradient_op, {c.gradient(), c.input(0), c.output()}, c.attributes())};
}

// Averages are linear: the gradient of the gradient is the average again.
Tensors avg_pool_gradient(const GradientContext& c) {
  Attributes attributes = c.attributes();
  Shape size = size_of_image(c.input_spec(0).shape);
  attributes.set({"input_size", size});
  return {trace_op(avg_pool_gradient_op, {c.gradient()}, attributes)};
}
Tensors avg_pool_gradient_gradient(const GradientContext& c) {
  const Attributes& a = c.attributes();
  return {trace_op(avg_pool_op, {c.gradient()},
                   {{"kernel", a.list("kernel")},
                    {"stride", a.list("stride")},
                    {"padding", a.list("padding")},
                    {"ceil_mode", a.integer("ceil_mode")},
                    {"count_include_pad", a.integer("count_include_pad")}})};
}
Tensors adaptive_avg_pool_gradient(const GradientContext& c) {
  return {
      trace_op(adaptive_avg_pool_gradient_op, {c.gradient()}, {{"input_size", size_of_image(c.input_spec(0).shape)}})};
}
Tensors adaptive_avg_pool_gradient_gradient(const GradientContext& c) {
  return {trace_op(adaptive_avg_pool_op, {c.gradient()}, {{"output_size", size_of_image(c.input_spec(0).shape)}})};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const MaxPool2dOptions& options) {
  return trace_op(max_pool_op, {x},
                  window_attributes("max_pool2d", options.kernel, options.stride, options.padding, options.ceil_mode));
}

Tensor avg_pool2d(const Tensor& x, const AvgPool2dOptions& options) {
  Attributes attributes =
      window_attributes("avg_pool2d", options.kernel, options.stride, options.padding, options.ceil_mode);
  attributes.set({"count_include_pad", options.count_include_pad});
  return trace_op(avg_pool_op, {x}, attributes);
}

Tensor adaptive_avg_pool2d(const Tensor& x, const Shape& output_size) {
  return trace_op(adaptive_avg_pool_op, {x},
                  {{"output_size", window_pair("adaptive_avg_pool2d", "output_size", output_size, 1)}});
}

}  // namespace bonfire
