#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

// The hashes are read some steps after they were submitted, so that the device is never idle.
void Trainer::State::check_replicas(bool updated) {
  constexpr int64_t kInFlight = 2;  // steps
  if (!replicas) return;
  const bool apart = local && local->local();  // as they should be, until they are averaged
  const bool due = updated && !apart && step - replicas_step >= *config.check_replicas;
  if (replicas->started() && (due || step >= replicas_step + kInFlight)) replicas->finish(replicas_step);
  if (!due) return;
  replicas_step = step;
  replicas->start();
}

void Trainer::State::compare_replicas() {
  if (!replicas) return;
  replicas->finish(replicas_step);
  replicas->compare(step);
  replicas_step = step;
}

}  // namespace bonfire::train
