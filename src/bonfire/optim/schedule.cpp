#include "bonfire/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "bonfire/base/error.h"
#include "bonfire/base/nearest.h"

namespace bonfire::optim {

namespace {

const std::vector<std::string> kNames = {"constant", "multi_step", "cosine", "polynomial"};

void check_milestones(const std::vector<double>& milestones) {
  if (milestones.empty())
    throw_error<ConfigError>("[schedule] multi_step has no milestones, expected the steps at which the rate goes down");
  for (size_t i = 1; i < milestones.size(); ++i)
    if (!(milestones[i] > milestones[i - 1]))
      throw_error<ConfigError>(
          "[schedule] milestones are {} and then {}, expected each to be later than the one before", milestones[i - 1],
          milestones[i]);
}

double without_warmup(const Schedule& s, double step) {
  if (s.kind == ScheduleKind::constant) return s.lr;
  if (s.kind == ScheduleKind::multi_step) {
    auto passed = std::count_if(s.milestones.begin(), s.milestones.end(), [&](double m) { return step >= m; });
    return s.lr * std::pow(s.gamma, static_cast<double>(passed));
  }
  if (!(s.total_steps > 0))
    throw_error<ConfigError>("[schedule] total_steps is {}, expected when the rate ends", s.total_steps);
  const double progress = std::min(step, s.total_steps) / s.total_steps;
  const double share = s.kind == ScheduleKind::cosine ? (1 + std::cos(std::numbers::pi * progress)) / 2
                                                      : std::pow(1 - progress, s.power);
  return s.min_lr + (s.lr - s.min_lr) * share;
}

}  // namespace

ScheduleKind parse_schedule_kind(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<ScheduleKind>(i);
  throw_error<ConfigError>("[schedule] there is no schedule '{}'; the nearest name is '{}'", name,
                           base::nearest(name, kNames));
}

double Schedule::at(double step) const {
  if (!(step >= 0)) throw_error<ConfigError>("[schedule] step is {}, expected at least 0", step);
  if (!(lr >= 0 && warmup_steps >= 0 && warmup_start_lr >= 0))
    throw_error<ConfigError>("[schedule] lr {}, warmup_steps {} and warmup_start_lr {} must be at least 0", lr,
                             warmup_steps, warmup_start_lr);
  if (kind == ScheduleKind::multi_step) check_milestones(milestones);
  if (step < warmup_steps) return warmup_start_lr + (lr - warmup_start_lr) * step / warmup_steps;
  return without_warmup(*this, step - warmup_steps);
}

}  // namespace bonfire::optim
