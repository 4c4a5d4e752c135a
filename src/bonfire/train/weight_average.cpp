#include "bonfire/train/weight_average.h"

#include <algorithm>

#include "bonfire/graph/trace.h"
#include "bonfire/nn/state_dict.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::train {

OtherValues::OtherValues(const nn::Module& model, Device device) {
  // By what the model itself holds, also in a thread that computes with other copies of that.
  const VariableCopies none;
  const UseCopies held(none);
  for (const auto& [name, variable] : model.state_dict()) {
    copies_.add(variable, device);
    state_.push_back({name, *copies_.find(variable)});
    state_.back().variable.set_requires_grad(false);
  }
}

WeightAverage::WeightAverage(const nn::Module& source, Device device, double decay)
    : mean_(source, device), sources_(source.state_dict()), decay_(decay) {
  begin_anew();
}

void WeightAverage::begin_anew() const { nn::load_state_dict(mean_.state(), sources_); }

void WeightAverage::set_step(int64_t step) {
  auto t = static_cast<double>(step);
  share_.set(1 - std::min(decay_, (1 + t) / (10 + t)));
}

void WeightAverage::append_update() const {
  NoGrad no_grad;
  PathScope path("average");
  PhaseScope phase(Phase::update);
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Variable &mean = mean_.state()[i].variable, &source = sources_[i].variable;
    if (is_floating(mean.dtype())) {
      mean.assign_stored(mean.stored() + (source.stored() - mean.stored()) * share_);
    } else {
      mean.assign_stored(source.stored());
    }
  }
}

}  // namespace bonfire::train
