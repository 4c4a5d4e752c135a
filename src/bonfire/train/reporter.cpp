#include "bonfire/train/reporter.h"

#include <fmt/format.h>

#include "bonfire/train/number_text.h"

namespace bonfire::train {

std::string RunBegins::chosen_on() const {
  return validates() ? fmt::format("{} validation {}", grouped(validation_samples), unit)
                     : fmt::format("{} test {}", grouped(test_samples), unit);
}

const char* name_of(EvaluationReport::On on) { return on == EvaluationReport::On::test ? "test" : "validation"; }

std::string when_of(const EvaluationReport& report) {
  return report.ends_epoch ? fmt::format("epoch {}", report.epoch) : fmt::format("step {}", grouped(report.step));
}

}  // namespace bonfire::train
