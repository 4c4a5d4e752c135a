#pragma once
// WeightAverage: the running mean of a model's weights and buffers (EMA), kept as copies of them that are evaluated and
// saved in their place.
//
//   mean ← mean + (1 − d) (weight − mean),   d = min(decay, (1 + t) / (10 + t)) at step t
//
// so the first steps, whose weights say little, are soon forgotten. Counters are taken over as they are.

#include "bonfire/graph/variable_copies.h"
#include "bonfire/nn/module.h"

namespace bonfire::train {

// Other values for all that a model holds, on one device. While UseCopies(values.copies()) lives, it computes with
// them.
class OtherValues {
 public:
  OtherValues(const nn::Module& model, Device device);  // zeros
  const VariableCopies& copies() const { return copies_; }
  const nn::StateDict& state() const { return state_; }  // the values, by the names of the model's; never trained

 private:
  VariableCopies copies_;
  nn::StateDict state_;
};

class WeightAverage {
 public:
  WeightAverage(const nn::Module& source, Device device, double decay);  // begins as a copy

  void begin_anew() const;      // from the source's weights as they are now
  void set_step(int64_t step);  // t; before each launch
  void append_update() const;   // traces the update; after the optimizer's step
  const VariableCopies& copies() const { return mean_.copies(); }
  const nn::StateDict& state() const { return mean_.state(); }

 private:
  OtherValues mean_;
  nn::StateDict sources_;  // in the same order
  double decay_;
  Scalar share_;  // 1 − d
};

}  // namespace bonfire::train
