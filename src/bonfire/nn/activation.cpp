#include "bonfire/nn/activation.h"

#include "bonfire/base/error.h"
#include "bonfire/nn/python_text.h"
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::nn {

Dropout::Dropout(double p) : Callable("Dropout"), p_(p) {
  if (!(p >= 0 && p <= 1)) throw_error<ConfigError>("[Dropout] p is {}, expected a probability in [0, 1]", p);
  set_details(fmt::format("p={}, inplace=False", python_text(p)));
}

Tensor Dropout::forward(const Tensor& x) const { return dropout(x, p_, training()); }

Flatten::Flatten(int64_t first, int64_t last) : Callable("Flatten"), first_(first), last_(last) {
  set_details(fmt::format("start_dim={}, end_dim={}", first, last));
}

Tensor Flatten::forward(const Tensor& x) const { return flatten(x, first_, last_); }

}  // namespace bonfire::nn
