#pragma once
// WeightAverage: the running mean of a model's weights and buffers (EMA), kept as a second model that is evaluated and
// saved in place of the first.
//
//   mean ← mean + (1 − d) (weight − mean),   d = min(decay, (1 + t) / (10 + t)) at step t
//
// so the first steps, whose weights say little, are soon forgotten. Counters are taken over as they are.

#include "bonfire/models/make.h"

namespace bonfire::train {

class WeightAverage {
 public:
  // `mean` must be made as `source` is, and on its device. It begins as a copy and is never trained.
  WeightAverage(models::Model mean, const nn::Module& source, double decay);

  void begin_anew() const;      // from the source's weights as they are now
  void set_step(int64_t step);  // t; before each launch
  void append_update() const;   // traces the update; behind the optimizer's step
  const models::Model& model() const { return mean_; }

 private:
  models::Model mean_;
  nn::StateDict means_, sources_;  // in the same order
  double decay_;
  Scalar share_;  // 1 − d
};

}  // namespace bonfire::train
