#pragma once
// strategy.accumulate_steps: the gradients of so many batches add up before an update, as if they were one batch.
//
//   loss.backward();         // adds 1/K of its gradients; they are reduced over the ranks with the K-th
//   optimizer.step();        // updates every K-th time it is called
//   optimizer.clear_grad();  // clears after an update; else nothing
//
// clip_grad_norm, the hooks after an update and local SGD count updates too. Every batch weighs the same, unless the
// program weighs them.

#include <cstdint>
#include <vector>

#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

class Accumulation final : public StrategyPart {
 public:
  // Of this optimizer's parameters, in the steps of this thread, while it lives.
  Accumulation(const optim::Optimizer& optimizer, int64_t batches);
  Accumulation(const Accumulation&) = delete;
  Accumulation& operator=(const Accumulation&) = delete;

  void leave_weights_to_program() { equal_weights_ = {}; }  // which multiplies each loss by its own
  // For a program that counts by itself: whether the batch that comes is the first and the last of an update.
  void stand_at(bool first, bool last);

  const std::vector<Variable>& parameters() const { return parameters_; }

 private:
  std::vector<Variable> parameters_;
  StepState<int64_t> batches_;
  StepState<int64_t> added_;  // since the last update
  Hook equal_weights_;
  std::vector<Hook> hooks_;
};

Accumulation* accumulation_of_job();  // null: this thread's job does without

}  // namespace bonfire::fleet
