#pragma once
// When ranks that train on their own meet: local SGD's counting, without the communication (gradient_reduction.cpp has
// that).

#include <cstdint>
#include <optional>

#include "bonfire/graph/step_state.h"
#include "bonfire/parallel/strategy.h"

namespace bonfire {

class LocalSgd {
 public:
  // ConfigError for numbers that cannot be. `rate`: the optimizer's now.
  LocalSgd(const DistributedStrategy& strategy, double rate);

  bool local() const { return local_; }              // whether the step that is being traced is a rank's own
  bool averaged() const { return own_steps_ == 0; }  // whether all ranks have the same parameters
  bool averages_next() const { return local_ && own_steps_ + 1 >= every_; }  // at the end of the step that comes
  void begin_epoch(int64_t epoch);
  // After a step's update, at this rate; true: its parameters are to be averaged.
  bool ends_with_average(double rate);
  void note_average() { own_steps_ = 0; }

  // Whether the rate decides when it begins: then a step cannot be traced once for all.
  bool waits_for_rate() const { return !warm_epochs_ && !local_; }

  // For checkpoints, which are of ranks that are averaged.
  double highest_rate() const { return highest_rate_; }
  void resume(bool local, double highest_rate) {
    local_ = local;
    highest_rate_ = highest_rate;
  }

 private:
  int64_t every_;
  std::optional<int64_t> warm_epochs_;  // empty: until the rate drops
  double highest_rate_;
  StepState<bool> local_;
  StepState<int64_t> own_steps_;  // since the last average
};

}  // namespace bonfire
