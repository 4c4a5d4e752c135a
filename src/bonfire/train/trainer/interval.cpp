#include "bonfire/train/trainer/interval.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace bonfire::train {

std::optional<Interval> parse_interval(std::string_view text) {
  Interval interval;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), interval.count);
  if (error != std::errc() || !std::isfinite(interval.count)) return {};
  std::string_view unit = text.substr(static_cast<size_t>(stopped - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit == "step" || unit == "steps")
    interval.unit = Interval::Unit::steps;
  else if (unit == "min" || unit == "minute" || unit == "minutes")
    interval.unit = Interval::Unit::minutes;
  else if (!unit.empty() && unit != "epoch" && unit != "epochs")
    return {};
  const bool counts = interval.count >= 1 && interval.count == std::floor(interval.count) && interval.count < 1e15;
  if (interval.unit == Interval::Unit::minutes ? interval.count <= 0 : !counts) return {};
  return interval;
}

std::string to_string(const Interval& interval) {
  const char* unit = interval.unit == Interval::Unit::steps     ? " steps"
                     : interval.unit == Interval::Unit::minutes ? " min"
                                                                : "";
  return fmt::format("{}{}", interval.count, unit);
}

bool Turn::by_epochs(int64_t epochs) const {
  return every_.unit == Interval::Unit::epochs && epochs % static_cast<int64_t>(every_.count) == 0;
}

bool Turn::by_steps(int64_t step) const {
  if (every_.unit != Interval::Unit::steps) return false;
  const auto count = static_cast<int64_t>(every_.count);
  return step / count > step_ / count;
}

bool Turn::by_clock(double now) const {
  return every_.unit == Interval::Unit::minutes && now - since_ >= 60 * every_.count;
}

void Turn::done(int64_t step, double now) {
  step_ = step;
  since_ = now;
}

}  // namespace bonfire::train
