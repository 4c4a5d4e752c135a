#include "bonfire/ops/convolution.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire {

namespace {

// [OH, OW] that a window of `kernel` {KH, KW} makes of `input` {H, W}.
Shape output_size(const InferContext& context, const Shape& input, const Shape& kernel) {
  const Attributes& a = context.attributes;
  Shape size;
  for (int i = 0; i < 2; ++i) {
    int64_t padded = input[i] + 2 * a.list("padding")[static_cast<size_t>(i)];
    int64_t reach = a.list("dilation")[static_cast<size_t>(i)] * (kernel[i] - 1) + 1;
    if (kernel[i] < 1 || reach > padded)
      throw_error<ShapeError>("[{}] the kernel is larger than the padded input: it covers {} of {} (inputs are {}, {})",
                              context.op.name, reach, padded, describe_inputs(context), to_string(a));
    size.push_back((padded - reach) / a.list("stride")[static_cast<size_t>(i)] + 1);
  }
  return size;
}

Shape last_two(const Shape& shape) { return {shape[-2], shape[-1]}; }

void require_images(const InferContext& context, const char* first, const char* second) {
  require_one_device(context);
  require_floating(context, 0, first);
  require_dtype(context, 1, second, context.input(0).dtype);
  require_rank(context, 0, first, 4);
  require_rank(context, 1, second, 4);
}

void require_outputs(const InferContext& context, int64_t outputs) {
  int64_t groups = context.attributes.integer("groups");
  if (outputs % groups != 0)
    throw_error<ShapeError>("[{}] {} output channels do not divide into {} groups (inputs are {})", context.op.name,
                            outputs, groups, describe_inputs(context));
}

TensorSpec infer_convolution(const InferContext& context) {
  require_images(context, "input", "weight");
  const Shape &x = context.input(0).shape, &weight = context.input(1).shape;
  int64_t groups = context.attributes.integer("groups");
  if (x[1] != weight[1] * groups)
    throw_error<ShapeError>("[{}] input has {} channels, weight expects {} (weight {}, input {}{})", context.op.name,
                            x[1], weight[1] * groups, to_string(weight), to_string(x),
                            groups == 1 ? std::string() : fmt::format(", groups {}", groups));
  require_outputs(context, weight[0]);
  TensorSpec result = context.input(0);
  Shape size = output_size(context, last_two(x), last_two(weight));
  result.shape = {x[0], weight[0], size[0], size[1]};
  return result;
}

OutputSpecs infer_conv2d(const InferContext& context) { return {infer_convolution(context)}; }

OutputSpecs infer_input_gradient(const InferContext& context) {
  require_images(context, "dy", "weight");
  const Shape &dy = context.input(0).shape, &weight = context.input(1).shape;
  require_outputs(context, weight[0]);
  Shape input = context.attributes.ints("input_size");
  Shape size = output_size(context, input, last_two(weight));
  require_shape(context, 0, "dy", {dy[0], weight[0], size[0], size[1]});
  TensorSpec result = context.input(0);
  result.shape = {dy[0], weight[1] * context.attributes.integer("groups"), input[0], input[1]};
  return {result};
}

OutputSpecs infer_weight_gradient(const InferContext& context) {
  require_images(context, "dy", "input");
  const Shape &dy = context.input(0).shape, &x = context.input(1).shape;
  require_outputs(context, dy[1]);
  require_outputs(context, x[1]);
  Shape kernel = context.attributes.ints("kernel_size");
  Shape size = output_size(context, last_two(x), kernel);
  require_shape(context, 0, "dy", {x[0], dy[1], size[0], size[1]});
  TensorSpec result = context.input(0);
  result.shape = {dy[1], x[1] / context.attributes.integer("groups"), kernel[0], kernel[1]};
  return {result};
}

OutputSpecs infer_conv2d_bias_act(const InferContext& context) {
  TensorSpec result = infer_convolution(context);
  require_activation(context);
  size_t next = 2;
  if (context.attributes.flag("has_bias")) {
    const TensorSpec& bias = context.input(next);
    int64_t outputs = result.shape[1];
    if (!(bias.shape == Shape{outputs, 1, 1}) && !(bias.shape == Shape{1, outputs, 1, 1}))
      require_shape(context, next, "bias", {outputs});
    require_bias_type(context, next++, result.dtype);
  }
  if (context.attributes.flag("has_residual")) {
    require_shape(context, next, "residual", result.shape);
    require_dtype(context, next, "residual", result.dtype);
  }
  return {result};
}

Attributes with_list(Attributes attributes, const char* name, const Shape& list) {
  attributes.set({name, list});
  return attributes;
}

// The attributes of the convolution that any of the three ops is part of.
Attributes shared(const Attributes& a) {
  return {{"stride", a.list("stride")},
          {"padding", a.list("padding")},
          {"dilation", a.list("dilation")},
          {"groups", a.integer("groups")}};
}

Tensor convolve(const Tensor& x, const Tensor& weight, const Attributes& attributes);
Tensor input_gradient(const Tensor& dy, const Tensor& weight, const Shape& x, const Attributes& attributes);
Tensor weight_gradient(const Tensor& dy, const Tensor& x, const Shape& weight, const Attributes& attributes);

// Convolution is linear in the input and in the weight: with ⟨dy, conv(x, w)⟩ = ⟨input_gradient(dy, w), x⟩ =
// ⟨weight_gradient(dy, x), w⟩ every derivative of one of the three is another of them.
Tensors conv2d_gradient(const GradientContext& c) {
  const Tensor& dy = c.gradient();
  Tensor x = c.input(0), weight = c.input(1);
  return {c.needs(0) ? input_gradient(dy, weight, x.shape(), c.attributes()) : Tensor(),
          c.needs(1) ? weight_gradient(dy, x, weight.shape(), c.attributes()) : Tensor()};
}
Tensors input_gradient_gradient(const GradientContext& c) {  // g stands where x stood
  const Tensor& g = c.gradient();
  Tensor dy = c.input(0), weight = c.input(1);
  return {c.needs(0) ? convolve(g, weight, c.attributes()) : Tensor(),
          c.needs(1) ? weight_gradient(dy, g, weight.shape(), c.attributes()) : Tensor()};
}
Tensors weight_gradient_gradient(const GradientContext& c) {  // g stands where the weight stood
  const Tensor& g = c.gradient();
  Tensor dy = c.input(0), x = c.input(1);
  return {c.needs(0) ? convolve(x, g, c.attributes()) : Tensor(),
          c.needs(1) ? input_gradient(dy, g, x.shape(), c.attributes()) : Tensor()};
}

// Each of the three ops joins two of image [N, C, …], weight [O, C, …] and result [N, O, …] to the third. Channels that
// both operands have are summed over, so parts of them give partial sums; others are channels of the third. `shared`:
// the axis, of each operand, of what both have; `own`: that of channels that it alone has, `given`: where the third has
// these (-1: it has none). `groups`: of both operands and the result, the axis along which groups stand side by side.
struct ChannelAxes {
  int shared[2], own[2], given[2], groups[3];
};

ShardRuleResult shard_channels(const ShardContext& c, const ChannelAxes& axes) {
  const std::optional<size_t> leader = c.first_split();
  if (!leader) return {};
  ShardAnswer answer = c.on_whole();
  if (const int64_t groups = c.attributes.integer("groups"); groups > 1) {  // by groups, all three of them
    const int in[] = {axes.groups[0], axes.groups[1]};
    const Sharding& split = c.shardings[*leader];
    if (groups % c.parts != 0 || !split.is_split(in[*leader]) || split.blocks != 1) return {};
    for (size_t i : {0, 1}) answer.inputs[i] = Sharding::split(in[i]);
    answer.outputs[0] = Sharding::split(axes.groups[2]);
    answer.attributes.set({"groups", groups / c.parts});
    return answer;
  }
  size_t by = *leader;  // where both are split otherwise, the smaller one is gathered
  const bool summed[] = {c.shardings[0].is_split(axes.shared[0]), c.shardings[1].is_split(axes.shared[1])};
  if (!summed[by] && !c.shardings[by].is_split(axes.own[by])) by = 1 - by;
  const Sharding& split = c.shardings[by];
  answer.inputs[by] = split;
  if (split.is_split(axes.shared[by])) {
    answer.inputs[1 - by] = Sharding::split(axes.shared[1 - by], split.blocks);
    answer.outputs[0] = Sharding::partial();
  } else if (split.is_split(axes.own[by])) {
    answer.outputs[0] = Sharding::split(axes.given[by], split.blocks);
  } else {
    return {};
  }
  return answer;
}

// image and weight → result: [N, C], [O, C] → [N, O]
ShardRuleResult shard_conv2d(const ShardContext& c) {
  return shard_channels(c, {.shared = {1, 1}, .own = {-1, 0}, .given = {-1, 1}, .groups = {1, 0, 1}});
}
// dy and weight → dx: [N, O], [O, C] → [N, C]
ShardRuleResult shard_input_gradient(const ShardContext& c) {
  return shard_channels(c, {.shared = {1, 0}, .own = {-1, 1}, .given = {-1, 1}, .groups = {1, 0, 1}});
}
// dy and image → dweight: [N, O], [N, C] → [O, C], summed over images
ShardRuleResult shard_weight_gradient(const ShardContext& c) {
  return shard_channels(c, {.shared = {0, 0}, .own = {1, 1}, .given = {0, 1}, .groups = {1, 1, 0}});
}

const Op& conv2d_op = register_op(
    {.name = "conv2d", .infer = infer_conv2d, .gradient = conv2d_gradient, .shard = shard_conv2d, .amp = AmpRule::low});
const Op& conv2d_input_gradient_op = register_op({.name = "conv2d_input_gradient",
                                                  .infer = infer_input_gradient,
                                                  .gradient = input_gradient_gradient,
                                                  .shard = shard_input_gradient,
                                                  .amp = AmpRule::low});
const Op& conv2d_weight_gradient_op = register_op({.name = "conv2d_weight_gradient",
                                                   .infer = infer_weight_gradient,
                                                   .gradient = weight_gradient_gradient,
                                                   .shard = shard_weight_gradient,
                                                   .amp = AmpRule::low});
const Op& conv2d_bias_act_op =
    register_op({.name = "conv2d_bias_act", .infer = infer_conv2d_bias_act, .amp = AmpRule::low});

Tensor convolve(const Tensor& x, const Tensor& weight, const Attributes& attributes) {
  return trace_op(conv2d_op, {x, weight}, shared(attributes));
}
Tensor input_gradient(const Tensor& dy, const Tensor& weight, const Shape& x, const Attributes& attributes) {
  return trace_op(conv2d_input_gradient_op, {dy, weight}, with_list(shared(attributes), "input_size", last_two(x)));
}
Tensor weight_gradient(const Tensor& dy, const Tensor& x, const Shape& weight, const Attributes& attributes) {
  return trace_op(conv2d_weight_gradient_op, {dy, x}, with_list(shared(attributes), "kernel_size", last_two(weight)));
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  require_defined("conv2d", {{"x", x}, {"weight", weight}});
  if (options.groups < 1) throw_error<ShapeError>("[conv2d] groups is {}, expected at least 1", options.groups);
  Shape stride = window_pair("conv2d", "stride", options.stride, 1),
        padding = window_pair("conv2d", "padding", options.padding, 0);
  Shape dilation = window_pair("conv2d", "dilation", options.dilation, 1);
  Tensor y = trace_op(conv2d_op, {x, weight},
                      {{"stride", stride}, {"padding", padding}, {"dilation", dilation}, {"groups", options.groups}});
  if (!bias.defined()) return y;
  if (!(bias.shape() == Shape{weight.size(0)}))
    throw_error<ShapeError>("[conv2d] bias is {}, expected [{}] (weight {})", to_string(bias.shape()), weight.size(0),
                            to_string(weight.shape()));
  return y + reshape(bias, {weight.size(0), 1, 1});
}

}  // namespace bonfire
