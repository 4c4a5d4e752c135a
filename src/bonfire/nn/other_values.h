#pragma once
// Other values for all that a model holds: a running mean of its weights, weights of a file beside those at hand. The
// model object is used as it is, with them.
//
//   nn::OtherValues best(model, model.parameters()[0].device());
//   nn::load_state_dict(best.state(), "best.safetensors");
//   UseCopies scope(best.copies());
//   Tensor logits = model(image);  // computed with these

#include "bonfire/graph/variable_copies.h"
#include "bonfire/nn/module.h"

namespace bonfire::nn {

class OtherValues {
 public:
  OtherValues(const Module& model, Device device);  // zeros
  const VariableCopies& copies() const { return copies_; }
  const StateDict& state() const { return state_; }  // the values, by the names of the model's; never trained

 private:
  VariableCopies copies_;
  StateDict state_;
};

}  // namespace bonfire::nn
