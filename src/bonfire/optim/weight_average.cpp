#include "bonfire/optim/weight_average.h"

#include <algorithm>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::optim {
namespace {

double checked(double decay) {
  if (!(decay > 0 && decay < 1))
    throw_error<ConfigError>("[weight_average] decay is {}, expected above 0, below 1", decay);
  return decay;
}

}  // namespace

WeightAverage::WeightAverage(const nn::Module& source, const Optimizer& optimizer, double decay, const Only& only)
    : mean_(source), decay_(checked(decay)) {
  const nn::StateDict all = source.state_dict();
  std::set<const VariableState*> seen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (only && !only(all[i].variable)) continue;
    averaged_.push_back(mean_.state()[i]);
    sources_.push_back(all[i]);
    if (seen.insert(&all[i].variable.state()).second) pairs_.push_back({mean_.state()[i].variable, all[i].variable});
  }
  begin_anew();
  updating_ =
      StepContext::current().after_update.add([this, parameters = optimizer.parameters()](const Optimizer& one) {
        if (one.parameters() == parameters) append_update();
      });
}

void WeightAverage::begin_anew() const { nn::load_state_dict(averaged_, sources_); }

void WeightAverage::set_step(int64_t step) {
  auto t = static_cast<double>(step);
  share_.set(1 - std::min(decay_, (1 + t) / (10 + t)));
}

void WeightAverage::append_update() const {
  NoGrad no_grad;
  PathScope path("average");
  for (const auto& [mean, source] : pairs_) {
    if (is_floating(mean.dtype())) {
      mean.assign_stored(mean.stored() + (source.stored() - mean.stored()) * share_);
    } else {
      mean.assign_stored(source.stored());
    }
  }
}

}  // namespace bonfire::optim
