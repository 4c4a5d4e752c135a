#include <fstream>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/train/reporter.h"

namespace bonfire::train {

namespace {

using nlohmann::json;

class MetricsLog final : public Reporter {
 public:
  void begin(const RunBegins& run) override {
    path_ = run.folder / "metrics.jsonl";
    if (run.first_step > 0) cut_back(run.first_step);
    out_.open(path_, std::ios::app);
    if (!out_) throw_error<DataError>("[train] cannot write '{}'", path_.string());
    json event{{"event", "begin"},
               {"step", run.first_step},
               {"model", run.model},
               {"data", run.data},
               {"pixels", run.pixels},
               {"place", run.place},
               {"ranks", run.ranks},
               {"parameters", run.parameters},
               {"resumed_from", run.resumed_from}};
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
    if (report.top1) event["top1"] = *report.top1;
    if (!report.communication_waits.empty()) event["communication_waits"] = report.communication_waits;
    write(event);
  }
  void evaluated(const EvaluationReport& report) override {
    write({{"event", "evaluation"},
           {"epoch", report.epoch},
           {"step", report.step},
           {"loss", report.loss},
           {"top1", report.top1},
           {"top5", report.top5},
           {"best", report.best}});
  }
  void note(const std::string&) override {}
  void end(const RunEnds& run) override {
    write({{"event", "end"},
           {"best_top1", run.best_top1},
           {"last_top1", run.last_top1},
           {"seconds", run.seconds},
           {"interrupted", run.interrupted},
           {"stopped_early", run.stopped_early},
           {"checkpoint", run.checkpoint.string()}});
  }

 private:
  void write(const json& event) {
    out_ << event.dump(-1, ' ', false, json::error_handler_t::replace) << '\n' << std::flush;
    if (!out_) throw_error<DataError>("[train] cannot write '{}': is the disk full?", path_.string());
  }

  // Keeps the lines up to `step`; half a line at the end goes too.
  void cut_back(int64_t step) const {
    std::ifstream in(path_);
    std::string kept;
    for (std::string text; std::getline(in, text);) {
      json event = json::parse(text, nullptr, false);
      if (event.is_discarded() || event.value("event", "") == "end" || event.value("step", int64_t{0}) > step) continue;
      kept += text + '\n';
    }
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(kept))};
    base::write_file_atomically(path_, chunks);
  }

  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace

std::unique_ptr<Reporter> metrics_log() { return std::make_unique<MetricsLog>(); }

}  // namespace bonfire::train
