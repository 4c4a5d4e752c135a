#include "bonfire/nn/other_values.h"

namespace bonfire::nn {

OtherValues::OtherValues(const Module& model, Device device) {
  // By what the model itself holds, also in a thread that computes with other copies of that.
  const VariableCopies none;
  const UseCopies held(none);
  for (const auto& [name, variable] : model.state_dict()) {
    copies_.add(variable, device);
    state_.push_back({name, *copies_.find(variable)});
    state_.back().variable.set_requires_grad(false);
  }
}

}  // namespace bonfire::nn
