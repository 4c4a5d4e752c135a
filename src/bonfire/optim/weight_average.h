#pragma once
// WeightAverage: the running mean of a model's weights and buffers (EMA), kept as a second model that is evaluated and
// saved in place of the first.
//
//   optim::WeightAverage average(models::resnet18({.classes = 10}), model, optimizer, 0.999);
//   ...
//   average.set_step(step);                                // before each step
//   loss.backward(); optimizer.step(); optimizer.clear_grad();  // the mean follows the optimizer's updates
//   ...
//   Tensor logits = average.model()(image);                // in place of model(image)
//
//   mean ← mean + (1 − d) (weight − mean),   d = min(decay, (1 + t) / (10 + t)) at step t
//
// so the first steps, whose weights say little, are soon forgotten. Counters are taken over as they are. Where
// gradients add up (accumulate_steps) steps are updates. Made after fleet::distributed_optimizer(), it takes what local
// SGD has averaged.

#include <utility>

#include "bonfire/graph/hooks.h"
#include "bonfire/nn/module.h"
#include "bonfire/optim/optimizer.h"

namespace bonfire::optim {

// Without the model's type.
class RunningMean {
 public:
  RunningMean(const nn::Module& mean, const nn::Module& source, const Optimizer& optimizer, double decay);
  RunningMean(const RunningMean&) = delete;
  RunningMean& operator=(const RunningMean&) = delete;

  void begin_anew() const;      // from the source's weights as they are now
  void set_step(int64_t step);  // t; before each launch

 private:
  void append_update() const;  // traces the update

  nn::StateDict means_, sources_;  // in the same order
  double decay_;
  Scalar share_;  // 1 − d
  Hook updating_;
};

template <class Model>
class WeightAverage : public RunningMean {
 public:
  // `mean` must be made as `source` is, and on its device. It begins as a copy and is never trained. ConfigError for a
  // decay that is not between 0 and 1.
  WeightAverage(Model mean, const Model& source, const Optimizer& optimizer, double decay)
      : RunningMean(mean, source, optimizer, decay), mean_(std::move(mean)) {}

  const Model& model() const { return mean_; }

 private:
  Model mean_;
};

}  // namespace bonfire::optim
