#include "bonfire/train/report/time_left.h"

#include <algorithm>

namespace bonfire::train {

namespace {

bool is_pause(Progress::Doing doing) {
  return doing == Progress::Doing::evaluating || doing == Progress::Doing::saving;
}

}  // namespace

void TimeLeft::note(const Progress& now, double seconds) {
  constexpr int64_t kRemembered = 100;  // steps: the mean follows a run that gets slower
  const double compiling = now.seconds_compiling - last_.seconds_compiling;
  const double taken = std::max(0.0, seconds - noted_ - compiling);
  const int64_t steps = now.step - last_.step;
  if (last_.doing == Progress::Doing::compiling || compiling > 0) {
    steps_to_skip_ = 2;
  } else if (steps > 0 && steps_to_skip_ > 0) {
    steps_to_skip_ -= steps;
  } else if (steps > 0 && !is_pause(last_.doing)) {
    steps_ = std::min(steps_ + steps, std::max(steps, kRemembered));
    step_ += (taken / static_cast<double>(steps) - step_) * static_cast<double>(steps) / static_cast<double>(steps_);
  }
  if (is_pause(last_.doing)) {
    pausing_ += taken;
    if (!is_pause(now.doing)) {
      pause_ = pausing_;
      pausing_ = 0;
    }
  }
  last_ = now;
  noted_ = seconds;
}

// Before the first evaluation: forward takes about a third of a step.
double TimeLeft::of_pauses(double seconds) const {
  const int64_t left = run_.total_steps - last_.step, every = run_.steps_between_evaluations;
  if (every <= 0) return 0;
  const int64_t evaluated = run_.validates() ? run_.validation_samples : run_.test_samples;
  const auto batches = static_cast<double>(evaluated) / static_cast<double>(run_.batch_size * run_.replicas);
  const double each = pause_.value_or(batches * step_ / 3);
  const int64_t later = (left + every - 1) / every;
  const bool is_next = left % every == 0 && last_.done == last_.all;  // the epoch's last step is done
  if (!is_pause(last_.doing)) return static_cast<double>(is_next ? later + 1 : later) * each;
  return static_cast<double>(later) * each + std::max(0.0, each - pausing_ - (seconds - noted_));
}

std::optional<double> TimeLeft::left(double seconds) const {
  if (steps_ == 0) return {};
  const double steps = static_cast<double>(run_.total_steps - last_.step) * step_;
  const double since = is_pause(last_.doing) ? 0 : seconds - noted_;  // the step at hand
  return std::max(0.0, steps - std::min(since, step_)) + of_pauses(seconds);
}

}  // namespace bonfire::train
