#include "bonfire/parallel/local_sgd.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire {

LocalSgd::LocalSgd(const DistributedStrategy& strategy, double rate)
    : every_(strategy.local_sgd_steps), warm_epochs_(strategy.local_sgd_is_warm_steps), highest_rate_(rate) {
  if (every_ < 1) throw_error<ConfigError>("[fleet] local_sgd_steps is {}, expected at least 1", every_);
  if (warm_epochs_ && *warm_epochs_ < 0)
    throw_error<ConfigError>("[fleet] local_sgd_is_warm_steps is {}, expected epochs, at least 0, or auto",
                             *warm_epochs_);
  local_ = warm_epochs_ == 0;
}

void LocalSgd::begin_epoch(int64_t epoch) {
  if (warm_epochs_) local_ = epoch >= *warm_epochs_;
}

bool LocalSgd::ends_with_average(double rate) {
  const bool was_local = local_, average = averages_next();
  if (!warm_epochs_ && rate < highest_rate_) local_ = true;
  highest_rate_ = std::max(highest_rate_, rate);  // a schedule may warm up first
  if (average) {
    own_steps_ = 0;
  } else if (was_local) {
    own_steps_ = own_steps_ + 1;
  }
  return average;
}

}  // namespace bonfire
