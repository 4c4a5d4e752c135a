#include "bonfire/nn/convolution.h"

#include "bonfire/base/error.h"
#include "bonfire/nn/python_text.h"
#include "bonfire/nn/sizes.h"

namespace bonfire::nn {

namespace {

std::string details_of(const Conv2d::Options& options) {
  std::string text = fmt::format("{}, {}, kernel_size={}, stride={}", options.in, options.out,
                                 window_text(options.kernel), window_text(options.stride));
  if (window_text(options.padding) != "(0, 0)") text += ", padding=" + window_text(options.padding);
  if (window_text(options.dilation) != "(1, 1)") text += ", dilation=" + window_text(options.dilation);
  if (options.groups != 1) text += fmt::format(", groups={}", options.groups);
  return text + (options.bias ? "" : ", bias=False");
}

Shape weight_shape(const Conv2d::Options& options) {
  require_sizes("Conv2d", {{"in", options.in}, {"out", options.out}});
  if (options.groups < 1 || options.in % options.groups != 0 || options.out % options.groups != 0)
    throw_error<ConfigError>("[Conv2d] {} groups do not divide {} input and {} output channels", options.groups,
                             options.in, options.out);
  if (options.kernel.rank() < 1 || options.kernel.rank() > 2)
    throw_error<ConfigError>("[Conv2d] kernel is {}, expected {{h, w}} or one number for both",
                             to_string(options.kernel));
  require_sizes("Conv2d", {{"kernel", options.kernel[0]}, {"kernel", options.kernel[-1]}});
  return {options.out, options.in / options.groups, options.kernel[0], options.kernel[-1]};
}

}  // namespace

Conv2d::Conv2d(const Options& options)
    : Callable("Conv2d"),
      weight(Variable({weight_shape(options), DType::f32, {}})),
      options_{options.stride, options.padding, options.dilation, options.groups} {
  init::apply(options.weight_init, init::kaiming_uniform(), weight);
  register_parameter("weight", weight);
  if (options.bias) {
    bias = Parameter(Variable({{options.out}, DType::f32, {}}));
    init::apply(options.bias_init, init::bias_of(weight.shape()), bias);
    register_parameter("bias", bias);
  }
  set_details(details_of(options));
}

Tensor Conv2d::forward(const Tensor& x) const {
  return conv2d(x, weight, bias.defined() ? bias.value() : Tensor(), options_);
}

}  // namespace bonfire::nn
