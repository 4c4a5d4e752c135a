#include "bonfire/train/tasks/metric.h"

#include <fmt/format.h>

#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

Metric loss_metric() { return {.name = "loss", .unit = Metric::Unit::number, .higher_is_better = false}; }

std::string value_in_words(const Metric& metric, double value) {
  return metric.unit == Metric::Unit::share ? percent(value) : fmt::format("{:.4f}", value);
}

}  // namespace bonfire::train
