#include "bonfire/nn/norm.h"

#include <fmt/ranges.h>

#include "bonfire/base/error.h"
#include "bonfire/nn/init.h"
#include "bonfire/nn/python_text.h"
#include "bonfire/nn/sizes.h"
#include "bonfire/ops/batch_norm.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/layer_norm.h"
#include "bonfire/passes/pass.h"

namespace bonfire::nn {

namespace {

Variable ones_variable(const Shape& shape) {
  Variable variable({shape, DType::f32, {}});
  init::ones()(variable);
  return variable;
}

Variable zeros_variable(const Shape& shape) { return Variable({shape, DType::f32, {}}); }

Tensor value_or_undefined(const Variable& variable) { return variable.defined() ? variable.value() : Tensor(); }

}  // namespace

BatchNorm::BatchNorm(const std::string& kind, const Options& options) : Callable(kind), options_(options) {
  require_sizes(kind.c_str(), {{"channels", options.channels}});
  Shape shape{options.channels};
  if (options.affine) {
    weight = register_parameter("weight", Parameter(ones_variable(shape)));
    bias = register_parameter("bias", Parameter(zeros_variable(shape)));
  }
  running_mean = register_buffer("running_mean", zeros_variable(shape));
  running_var = register_buffer("running_var", ones_variable(shape));
  num_batches_tracked = register_buffer("num_batches_tracked", Variable({{}, DType::i64, {}}));
  set_details(fmt::format("{}, eps={}, momentum={}, affine={}, track_running_stats=True", options.channels,
                          python_text(options.eps), python_text(options.momentum), python_text(options.affine)));
}

Tensor BatchNorm::forward(const Tensor& x) const {
  if (training()) {
    NoGrad no_grad;
    num_batches_tracked.assign(num_batches_tracked + 1);
  }
  return batch_norm(x, value_or_undefined(weight), value_or_undefined(bias), running_mean, running_var,
                    {.training = training(),
                     .momentum = options_.momentum,
                     .eps = options_.eps,
                     .over_ranks = StepContext::current().options.sync_batch_norm});
}

LayerNorm::LayerNorm(const Options& options) : Callable("LayerNorm"), options_(options) {
  if (options.shape.rank() == 0)
    throw_error<ConfigError>(
        "[LayerNorm] shape is empty, expected the extents of the last axes: nn::LayerNorm({{.shape = {{512}}}})");
  for (int64_t extent : options.shape) require_sizes("LayerNorm", {{"shape", extent}});
  if (options.affine) {
    weight = register_parameter("weight", Parameter(ones_variable(options.shape)));
    bias = register_parameter("bias", Parameter(zeros_variable(options.shape)));
  }
  set_details(fmt::format("({}{}), eps={}, elementwise_affine={}",
                          fmt::join(options.shape.begin(), options.shape.end(), ", "),
                          options.shape.rank() == 1 ? "," : "", python_text(options.eps), python_text(options.affine)));
}

Tensor LayerNorm::forward(const Tensor& x) const {
  return layer_norm(x, value_or_undefined(weight), value_or_undefined(bias),
                    {.rank = options_.shape.rank(), .eps = options_.eps});
}

}  // namespace bonfire::nn
