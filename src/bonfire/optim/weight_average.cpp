#include "bonfire/optim/weight_average.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::optim {

RunningMean::RunningMean(const nn::Module& mean, const nn::Module& source, const Optimizer& optimizer, double decay)
    : means_(mean.state_dict()), sources_(source.state_dict()), decay_(decay) {
  if (!(decay > 0 && decay < 1))
    throw_error<ConfigError>("[weight_average] decay is {}, expected above 0, below 1", decay);
  if (means_.size() != sources_.size())
    throw_error<ConfigError>(
        "[weight_average] the mean has {} parameters and buffers, its source has {}; make both models alike",
        means_.size(), sources_.size());
  mean.set_requires_grad(false);
  mean.eval();
  begin_anew();
  updating_ =
      StepContext::current().after_update.add([this, parameters = optimizer.parameters()](const Optimizer& one) {
        if (one.parameters() == parameters) append_update();
      });
}

void RunningMean::begin_anew() const { nn::load_state_dict(means_, sources_); }

void RunningMean::set_step(int64_t step) {
  auto t = static_cast<double>(step);
  share_.set(1 - std::min(decay_, (1 + t) / (10 + t)));
}

void RunningMean::append_update() const {
  PathScope path("average");
  for (size_t i = 0; i < means_.size(); ++i) {
    const Variable &mean = means_[i].variable, &source = sources_[i].variable;
    if (is_floating(mean.dtype())) {
      mean.assign(mean.value() + (source.value() - mean.value()) * share_);
    } else {
      mean.assign(source.value());
    }
  }
}

}  // namespace bonfire::optim
