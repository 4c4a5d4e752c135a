#pragma once
// use_local_sgd: ranks train on their own, and now and then their parameters become their mean.

#include <cstdint>
#include <optional>

#include "bonfire/graph/step_state.h"
#include "bonfire/parallel/strategy.h"

namespace bonfire {

// When they meet: the counting, without the communication.
class LocalSgd {
 public:
  // ConfigError for numbers that cannot be.
  explicit LocalSgd(const DistributedStrategy& strategy);

  bool local() const { return local_; }              // whether the step that is being traced is a rank's own
  bool averaged() const { return own_steps_ == 0; }  // whether all ranks have the same parameters
  bool averages_next() const { return local_ && own_steps_ + 1 >= every_; }  // at the end of the step that comes
  void begin_epoch(int64_t epoch);
  // Before the first step at another rate than before.
  void change_rate(double before, double now);
  // After a step's update; true: its parameters are to be averaged.
  bool ends_with_average();
  void note_average() { own_steps_ = 0; }

  // For checkpoints, which are of ranks that are averaged.
  double highest_rate() const { return highest_rate_; }
  void resume(bool local, double highest_rate) {
    local_ = local;
    highest_rate_ = highest_rate;
  }

 private:
  int64_t every_;
  std::optional<int64_t> warm_epochs_;   // empty: until the rate drops
  double highest_rate_ = 0;              // of a step
  StepState<bool> local_, has_stepped_;  // the latter: at the rate that there is
  StepState<int64_t> own_steps_;         // since the last average
};

namespace fleet {
LocalSgd* local_sgd_of_job();  // null: this thread's job does without
}

}  // namespace bonfire
