#pragma once
// Learning-rate schedules: the rate as a function of time. A step here is what at() counts, from 0: one of training, or
// an epoch.
//
//   optim::Schedule schedule{.kind = optim::ScheduleKind::cosine, .lr = 0.1, .total_steps = 90, .warmup_steps = 5};
//   optimizer.set_lr(schedule.at(epoch));

#include <string_view>
#include <vector>

namespace bonfire::optim {

enum class ScheduleKind { constant, multi_step, cosine, polynomial };

ScheduleKind parse_schedule_kind(std::string_view name);  // ConfigError with the nearest name when there is none

struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 0.1;  // where it starts, after the warm-up

  std::vector<double> milestones = {};  // multi_step: the rate is multiplied by gamma at each; they rise
  double gamma = 0.1;
  double total_steps = 0;  // cosine, polynomial: when the rate reaches its end, where it stays
  double min_lr = 0;       // cosine, polynomial: the rate at the end
  double power = 1;        // polynomial: min_lr + (lr − min_lr) (1 − step / total_steps)^power

  // A straight line in front of any of them, from warmup_start_lr to lr; then the schedule begins at its step 0.
  double warmup_steps = 0;
  double warmup_start_lr = 0;

  double at(double step) const;  // ConfigError when the settings make no sense
};

}  // namespace bonfire::optim
