#include "bonfire/nn/linear.h"

#include <fmt/core.h>

#include "bonfire/base/error.h"
#include "bonfire/nn/python_text.h"
#include "bonfire/nn/sizes.h"
#include "bonfire/ops/matmul.h"

namespace bonfire::nn {

namespace {

Shape weight_shape(const Linear::Options& options) {
  require_sizes("Linear", {{"in", options.in}, {"out", options.out}});
  return {options.out, options.in};
}

}  // namespace

Linear::Linear(const Options& options, const char* kind)
    : Callable(kind), weight(Variable({weight_shape(options), DType::f32, {}})) {
  init::apply(options.weight_init, init::kaiming_uniform(), weight);
  if (options.bias) {
    bias = Parameter(Variable({{options.out}, DType::f32, {}}));
    init::apply(options.bias_init, init::bias_of(weight.shape()), bias);
  }
  add_parameters();
}

Linear::Linear(const Parameter& tied_weight, const Parameter& tied_bias)
    : Callable("Linear"), weight(tied_weight), bias(tied_bias) {
  if (!weight.defined()) throw_error<ConfigError>("[Linear] the tied weight is undefined; expected one [out, in]");
  add_parameters();
}

void Linear::add_parameters() {
  register_parameter("weight", weight);
  if (bias.defined()) register_parameter("bias", bias);
  set_details(fmt::format("in_features={}, out_features={}, bias={}", weight.shape()[1], weight.shape()[0],
                          python_text(bias.defined())));
}

Tensor Linear::forward(const Tensor& x) const { return linear(x, weight, bias.defined() ? bias.value() : Tensor()); }

}  // namespace bonfire::nn
