#include "bonfire/train/report/reporter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bonfire/base/error.h"
#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

std::string RunBegins::chosen_on() const {
  return validates() ? fmt::format("{} validation {}", grouped(validation_samples), unit)
                     : fmt::format("{} test {}", grouped(test_samples), unit);
}

namespace {

class CallbackReporter final : public Reporter {
 public:
  explicit CallbackReporter(Callbacks functions) : call_(std::move(functions)) {}
  void begin(const RunBegins& run) override {
    if (call_.begin) call_.begin(run);
  }
  void step(const StepReport& report) override {
    if (call_.step) call_.step(report);
  }
  void evaluated(const EvaluationReport& report) override {
    if (call_.evaluation) call_.evaluation(report);
  }
  void epoch_ended(const EpochReport& report) override {
    if (call_.epoch) call_.epoch(report);
  }
  void note(const std::string&) override {}
  void end(const RunEnds& run) override {
    if (call_.end) call_.end(run);
  }

 private:
  Callbacks call_;
};

}  // namespace

std::unique_ptr<Reporter> callbacks(Callbacks functions) {
  return std::make_unique<CallbackReporter>(std::move(functions));
}

double EvaluationReport::score(std::string_view name) const {
  std::vector<std::string> names;
  for (const Score& one : scores) {
    if (one.metric.name == name) return one.value;
    names.push_back(one.metric.name);
  }
  throw_error<ConfigError>("[train] there is no metric '{}' in the evaluation, expected one of: {}", name,
                           fmt::join(names, ", "));
}

const char* name_of(EvaluationReport::On on) { return on == EvaluationReport::On::test ? "test" : "validation"; }

std::string in_words(const EvaluationReport& report) {
  std::string text = fmt::format("loss {:.4f}", report.loss);
  for (const Score& one : report.scores)
    if (one.metric.shown) text += fmt::format(", {} {}", one.metric.in_words(), value_in_words(one.metric, one.value));
  return text;
}

std::string samples_in_words(const RunBegins& run) {
  std::string text = fmt::format("{} {}", grouped(run.train_samples), run.unit);
  if (run.validates()) text += fmt::format(", {} to validate", grouped(run.validation_samples));
  return run.test_samples > 0 ? fmt::format("{}, {} to test", text, grouped(run.test_samples)) : text;
}

std::string when_of(const EvaluationReport& report) {
  return report.ends_epoch ? fmt::format("epoch {}", report.epoch) : fmt::format("step {}", grouped(report.step));
}

}  // namespace bonfire::train
