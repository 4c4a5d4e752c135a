#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/log_file.h"
#include "bonfire/train/report/reporter.h"

namespace bonfire::train {

namespace {

using nlohmann::json;

class MetricsLog final : public Reporter {
 public:
  void begin(const RunBegins& run) override {
    path_ = run.folder / "metrics.jsonl";
    chosen_on_ = name_of(run.validates() ? EvaluationReport::On::validation : EvaluationReport::On::test);
    headline_ = run.headline().name;
    if (run.first_step > 0) cut_back(run.first_step);
    log_ = base::LogFile(path_, base::LogFile::Begin::at_the_end);
    json event{{"event", "begin"},   {"step", run.first_step},       {"model", run.model},
               {"data", run.data},   {"pixels", run.pixels},         {"place", run.place},
               {"ranks", run.ranks}, {"parameters", run.parameters}, {"resumed_from", run.resumed_from}};
    if (!run.changes.empty()) event["changes"] = run.changes;
    if (!run.other_than_was.empty()) event["other_than_was"] = run.other_than_was;
    write(event);
  }
  void step(const StepReport& report) override {
    json event{{"event", "step"},
               {"epoch", report.epoch},
               {"step", report.step},
               {"loss", report.loss},
               {"lr", report.lr},
               {"samples_per_second", report.samples_per_second},
               {"data_wait", report.data_wait},
               {"communication_wait", report.communication_wait}};
    for (const Score& one : report.scores) event[one.metric.name] = one.value;
    if (!report.communication_waits.empty()) event["communication_waits"] = report.communication_waits;
    write(event);
  }
  void evaluated(const EvaluationReport& report) override {
    json event{
        {"event", "evaluation"}, {"on", name_of(report.on)}, {"epoch", report.epoch}, {"ends_epoch", report.ends_epoch},
        {"step", report.step},   {"loss", report.loss},      {"best", report.best}};
    for (const Score& one : report.scores) event[one.metric.name] = one.value;
    write(event);
  }
  void note(const std::string&) override {}
  void end(const RunEnds& run) override {
    json event{{"event", "end"},
               {"best_" + headline_, run.best_score},
               {"last_" + headline_, run.last_score},
               {"chosen_on", chosen_on_},
               {"seconds", run.seconds},
               {"interrupted", run.interrupted},
               {"stopped_early", run.stopped_early},
               {"checkpoint", run.checkpoint.string()}};
    if (run.test_score) event["test_" + headline_] = *run.test_score;
    write(event);
  }
  std::string take_warning() override { return not_cut_.empty() ? log_.take_warning() : std::exchange(not_cut_, {}); }
  std::string missing() const override { return log_.losses(); }

 private:
  void write(const json& event) { log_.write(event.dump(-1, ' ', false, json::error_handler_t::replace) + '\n'); }

  // Keeps the lines up to `step`; half a line at the end goes too. Where there is no room for that all of them stay.
  void cut_back(int64_t step) try {
    if (base::kind_of(path_) != base::PathKind::file) return;  // nothing that ends
    std::ifstream in(path_);
    std::string kept;
    for (std::string text; std::getline(in, text);) {
      json event = json::parse(text, nullptr, false);
      if (event.is_discarded() || event.value("event", "") == "end" || event.value("step", int64_t{0}) > step) continue;
      kept += text + '\n';
    }
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(kept))};
    base::write_file_atomically(path_, chunks);
  } catch (const DataError& error) {
    not_cut_ = fmt::format("the log keeps what was written after step {}: {}", step, error.what());
  }

  std::filesystem::path path_;
  base::LogFile log_;
  std::string chosen_on_, headline_, not_cut_;
};

}  // namespace

std::unique_ptr<Reporter> metrics_log() { return std::make_unique<MetricsLog>(); }

}  // namespace bonfire::train
