#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "bonfire/train/reporter.h"

namespace bonfire::train {

namespace {

using Clock = std::chrono::steady_clock;

// 20000 → "20,000"
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string duration(double seconds) {
  auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

class TerminalReporter final : public Reporter {
 public:
  void begin(const RunBegins& run) override {
    run_ = run;
    started_ = Clock::now();
    line(fmt::format("training {} ({} parameters) on {}: {} {}, {} to test", run.model, grouped(run.parameters),
                     run.data, grouped(run.train_samples), run.unit, grouped(run.test_samples)));
    bool whole = run.total_steps == run.epochs * run.steps_per_epoch;
    line(fmt::format("{} of {} on {}",
                     whole ? fmt::format("{} epochs of {} steps", run.epochs, grouped(run.steps_per_epoch))
                           : fmt::format("{} steps", grouped(run.total_steps)),
                     run.ranks > 1 ? fmt::format("{} {} ({} on each of {} ranks)", run.ranks * run.batch_size, run.unit,
                                                 run.batch_size, run.ranks)
                                   : fmt::format("{} {}", run.batch_size, run.unit),
                     run.place));
    if (!run.resumed_from.empty()) line("resumed from " + run.resumed_from);
  }

  void step(const StepReport& report) override {
    int64_t all = run_.total_steps, done = report.step - run_.first_step;
    double left = done > 0 ? elapsed() / static_cast<double>(done) * static_cast<double>(all - report.step) : 0;
    std::string numbers = fmt::format(
        "loss {:.4f}{}  {} {}/s  {}  ETA {}", report.loss, report.top1 ? "  acc " + percent(*report.top1) : "",
        grouped(static_cast<int64_t>(report.samples_per_second)), run_.unit, split(report), duration(left));
    int64_t in_epoch = report.step - (report.epoch - 1) * run_.steps_per_epoch;
    std::string head = fmt::format("epoch {}/{}", report.epoch, run_.epochs);
    if (is_terminal_) {
      draw(fmt::format("{} {} {}/{}  {}", head, bar(report.step, all), in_epoch, run_.steps_per_epoch, numbers));
    } else {
      line(fmt::format("{}, step {}/{}: {}", head, in_epoch, run_.steps_per_epoch, numbers));
    }
  }

  void evaluated(const EvaluationReport& report) override {
    line(fmt::format("epoch {}/{} done after {}: test loss {:.4f}, top-1 {}, top-5 {}{}", report.epoch, run_.epochs,
                     duration(elapsed()), report.loss, percent(report.top1), percent(report.top5),
                     report.best ? "  (best)" : ""));
  }

  void note(const std::string& text) override { line("note: " + text); }

  void end(const RunEnds& run) override {
    if (run.interrupted) {
      line(fmt::format("stopped after {}; saved. To go on: bonfire train {}/config.yaml resume={}",
                       duration(run.seconds), run_.folder.string(), run_.folder.string()));
      return;
    }
    line(fmt::format("{} after {}: best top-1 {} on {} {} it has not seen",
                     run.stopped_early ? "stopped early" : "done", duration(run.seconds), percent(run.best_top1),
                     grouped(run_.test_samples), run_.unit));
    line("report      " + (run_.folder / "report.html").string());
    line("weights     " + run.weights.string());
    line("checkpoint  " + run.checkpoint.string());
    line("log         " + (run_.folder / "metrics.jsonl").string());
    if (!run.trace.empty()) line("trace       " + run.trace.string() + " (open it in ui.perfetto.dev)");
    line("try next    " + what_to_try_next(run_));
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  static std::string bar(int64_t done, int64_t all) {
    constexpr int64_t kWidth = 20;  // characters
    int64_t full = all > 0 ? kWidth * done / all : 0;
    std::string text;
    for (int64_t i = 0; i < kWidth; ++i) text += i < full ? "━" : "─";
    return text;
  }

  // Where the time goes: "compute 97 % data 3 %".
  static std::string split(const StepReport& report) {
    double computing = 1 - report.data_wait - report.communication_wait;
    std::string text = fmt::format("compute {:.0f} % data {:.0f} %", 100 * computing, 100 * report.data_wait);
    if (report.communication_wait > 0) text += fmt::format(" comm {:.0f} %", 100 * report.communication_wait);
    return text;
  }

  // One line that is drawn over again; cut at the terminal's edge so that it stays one.
  void draw(const std::string& text) {
    winsize size{};
    size_t width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    size_t shown = 0, bytes = 0;
    while (bytes < text.size() && shown < width) {
      ++bytes;
      while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80) ++bytes;
      ++shown;
    }
    std::printf("\r\033[K%.*s", static_cast<int>(bytes), text.c_str());
    std::fflush(stdout);
    drawn_ = true;
  }

  void line(const std::string& text) {
    std::printf("%s%s\n", drawn_ ? "\r\033[K" : "", text.c_str());
    std::fflush(stdout);
    drawn_ = false;
  }

  RunBegins run_;
  Clock::time_point started_;
  bool is_terminal_ = isatty(STDOUT_FILENO) == 1;
  bool drawn_ = false;
};

}  // namespace

std::string what_to_try_next(const RunBegins& run) {
  bool is_text = run.unit == "sequences", is_built_in = run.data.starts_with("generated ");
  std::string folder = run.folder.string();
  if (is_text && is_built_in)
    return fmt::format("bonfire train {}/config.yaml data=FOLDER, with text of yours (docs/text.md)", folder);
  if (is_text) return fmt::format("bonfire predict {} \"a sentence with [MASK] in it\"", folder);
  if (run.model == "mnist_cnn" && is_built_in)
    return "bonfire train model=resnet18_small, or data=FOLDER with pictures or MNIST's files (docs/data.md)";
  if (is_built_in)
    return fmt::format("bonfire train model={} data=FOLDER, with pictures of yours (docs/data.md)", run.model);
  return fmt::format("bonfire predict {} IMAGE, to see what it takes a picture for", folder);
}

std::unique_ptr<Reporter> terminal_reporter() { return std::make_unique<TerminalReporter>(); }

}  // namespace bonfire::train
