#include "bonfire/train/weight_average.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::train {

WeightAverage::WeightAverage(models::Model mean, const nn::Module& source, double decay)
    : mean_(std::move(mean)), means_(mean_.state_dict()), sources_(source.state_dict()), decay_(decay) {
  BONFIRE_CHECK(means_.size() == sources_.size());
  for (size_t i = 0; i < means_.size(); ++i) means_[i].variable.keep_slice(sources_[i].variable.slice());
  mean_.set_requires_grad(false);
  mean_.eval();
  begin_anew();
}

void WeightAverage::begin_anew() const { nn::load_state_dict(means_, sources_); }

void WeightAverage::set_step(int64_t step) {
  auto t = static_cast<double>(step);
  share_.set(1 - std::min(decay_, (1 + t) / (10 + t)));
}

void WeightAverage::append_update() const {
  NoGrad no_grad;
  PathScope path("average");
  PhaseScope phase(Phase::update);
  for (size_t i = 0; i < means_.size(); ++i) {
    const Variable &mean = means_[i].variable, &source = sources_[i].variable;
    if (is_floating(mean.dtype())) {
      mean.assign_stored(mean.stored() + (source.stored() - mean.stored()) * share_);
    } else {
      mean.assign_stored(source.stored());
    }
  }
}

}  // namespace bonfire::train
