#pragma once
// Other values for all that a model holds: a running mean of its weights, weights of a file beside those at hand. The
// model object is used as it is, with them.
//
//   nn::OtherValues best(model);
//   nn::load_state_dict(best.state(), "best.safetensors");
//   UseCopies scope(best.copies());
//   Tensor logits = model(image);  // computed with these

#include "bonfire/graph/variable_copies.h"
#include "bonfire/nn/module.h"

namespace bonfire::nn {

class OtherValues {
 public:
  explicit OtherValues(const Module& model);  // zeros, each where this thread has the model's value
  const VariableCopies& copies() const { return copies_; }
  const StateDict& state() const { return state_; }  // the values, by the names of the model's; never trained

 private:
  VariableCopies copies_;
  StateDict state_;
};

}  // namespace bonfire::nn
