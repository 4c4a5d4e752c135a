#pragma once
// WeightAverage: the running mean of a model's weights and buffers (EMA), kept as other values for the model, which are
// evaluated and saved in place of its own.
//
//   optim::WeightAverage average(model, optimizer, 0.999);
//   ...
//   average.set_step(step);                                     // before each step
//   loss.backward(); optimizer.step(); optimizer.clear_grad();  // the mean follows the optimizer's updates
//   ...
//   UseCopies scope(average.copies());
//   Tensor logits = model(image);                               // computed with the mean
//
//   mean ← mean + (1 − d) (weight − mean),   d = min(decay, (1 + t) / (10 + t)) at step t
//
// so the first steps, whose weights say little, are soon forgotten. Counters are taken over as they are. Where
// gradients add up (accumulate_steps) steps are updates. Made after fleet::distributed_optimizer(), it takes what local
// SGD has averaged.

#include <functional>
#include <vector>

#include "bonfire/graph/hooks.h"
#include "bonfire/nn/other_values.h"
#include "bonfire/optim/optimizer.h"

namespace bonfire::optim {

class WeightAverage {
 public:
  // Which of the source's variables are averaged.
  using Only = std::function<bool(const Variable& source)>;

  // Begins as a copy, on the source's device. ConfigError for a decay that is not between 0 and 1. only: those that
  // this rank holds, where it holds a part of the model; the means of others take no memory. Empty: all.
  WeightAverage(const nn::Module& source, const Optimizer& optimizer, double decay, const Only& only = {});
  WeightAverage(const WeightAverage&) = delete;
  WeightAverage& operator=(const WeightAverage&) = delete;

  void begin_anew() const;      // from the source's weights as they are now
  void set_step(int64_t step);  // t; before each submission
  const VariableCopies& copies() const { return mean_.copies(); }
  const nn::StateDict& state() const { return mean_.state(); }  // the mean, by the names of the model's

 private:
  void append_update() const;  // traces the update

  struct Pair {
    Variable mean, source;
  };

  nn::OtherValues mean_;
  nn::StateDict averaged_, sources_;  // the means of those that are averaged; their sources, in the same order
  std::vector<Pair> pairs_;           // of them, a tied variable once
  double decay_;
  Scalar share_;  // 1 − d
  Hook updating_;
};

}  // namespace bonfire::optim
