#include "bonfire/nn/other_values.h"

namespace bonfire::nn {

OtherValues::OtherValues(const Module& model) {
  const StateDict computed = model.state_dict();
  // By what the model itself holds, also in a thread that computes with other copies of that.
  const VariableCopies none;
  const UseCopies held(none);
  for (size_t i = 0; const auto& [name, variable] : model.state_dict()) {
    copies_.add(variable, computed[i++].variable.device());
    state_.push_back({name, *copies_.find(variable)});
    state_.back().variable.set_requires_grad(false);
  }
}

}  // namespace bonfire::nn
