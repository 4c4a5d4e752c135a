#pragma once
// TimeLeft: when a run will end, from what its steps, evaluations and checkpoints have taken so far. Compiling, which
// is done once, counts for nothing; and neither do the two steps after it, which may still wait for it on another rank.

#include <optional>

#include "bonfire/train/report/reporter.h"

namespace bonfire::train {

class TimeLeft {
 public:
  explicit TimeLeft(const RunBegins& run = {}) : run_(run) {}

  void note(const Progress& now, double seconds);    // on any clock that never goes back
  std::optional<double> left(double seconds) const;  // in seconds; nothing: too little is known

 private:
  double of_pauses(double seconds) const;

  RunBegins run_;
  Progress last_;
  double noted_ = 0;             // when that was
  int64_t steps_to_skip_ = 2;    // that say nothing about the others
  int64_t steps_ = 0;            // that step_ is the mean of
  double step_ = 0;              // seconds
  std::optional<double> pause_;  // seconds: the last evaluation, and what was saved after it
  double pausing_ = 0;           // seconds of the one at hand so far
};

}  // namespace bonfire::train
