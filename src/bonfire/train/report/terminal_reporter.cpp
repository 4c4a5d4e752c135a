#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "bonfire/base/program_name.h"
#include "bonfire/train/report/number_text.h"
#include "bonfire/train/report/progress_line.h"
#include "bonfire/train/report/time_left.h"
#include "bonfire/train/report/timeline.h"

namespace bonfire::train {

namespace {

// The last evaluation first; and of the best, on what it was chosen.
std::string scores_of(const RunBegins& run, const RunEnds& end) {
  const Metric metric = run.headline();
  auto text = [&](double value) { return value_in_words(metric, value); };
  if (end.test_score)
    return fmt::format(
        "{} {} on {} test {}, evaluated once; the best weights had {} (the last {}) on the {} they "
        "were chosen on",
        metric.in_words(), text(*end.test_score), grouped(run.test_samples), run.unit, text(end.best_score),
        text(end.last_score), run.chosen_on());
  return fmt::format(
      "{} {} on {}; {}, chosen on these {}", metric.in_words(), text(end.last_score), run.chosen_on(),
      metric.is_better(end.best_score, end.last_score) ? "the best had " + text(end.best_score) : "it is the best",
      run.unit);
}

// In a terminal a thread draws the line, so that it moves whatever the run is busy with.
class TerminalReporter final : public Reporter {
 public:
  ~TerminalReporter() override { stop_drawing(); }

  void begin(const RunBegins& run) override {
    std::lock_guard lock(mutex_);
    facts_ = {.run = run, .now = {}};
    left_ = TimeLeft(run);
    started_ = since_ = seconds_now();
    line(fmt::format("training {} ({} parameters) on {}: {}", run.model, grouped(run.parameters), run.data,
                     samples_in_words(run)));
    line(fmt::format(
        "{} of {} on {}",
        run.counts_epochs() ? fmt::format("{} of {}", plural(run.epochs, "epoch"), plural(run.steps_per_epoch, "step"))
                            : plural(run.total_steps, "step"),
        run.replicas > 1 ? fmt::format("{} {} ({} on each of {} {})", grouped(run.replicas * run.batch_size), run.unit,
                                       grouped(run.batch_size), run.replicas, run.mesh.empty() ? "ranks" : "replicas")
                         : fmt::format("{} {}", grouped(run.batch_size), run.unit),
        run.place));
    if (!run.mesh.empty()) line(fmt::format("mesh: {}, {} ranks", run.mesh, run.ranks));
    if (!run.pixels.empty()) line("pixels: " + run.pixels);
    if (!run.resumed_from.empty()) line("resumed from " + run.resumed_from);
    if (is_terminal_) drawing_ = std::thread([this] { keep_drawing(); });
  }

  void progress(const Progress& now) override {
    std::lock_guard lock(mutex_);
    const bool is_first = facts_.now.epoch == 0;
    const bool another = is_first || now.doing != facts_.now.doing;
    if (another) since_ = seconds_now();
    facts_.now = now;
    left_.note(now, seconds_now());
    if (another && is_terminal_) draw();  // however short it is
  }

  void step(const StepReport& report) override {
    std::lock_guard lock(mutex_);
    facts_.report = report;
    facts_.seconds_left = left_.left(seconds_now());
    if (!is_terminal_) line(report_line(facts_));
  }

  void evaluated(const EvaluationReport& report) override {
    std::lock_guard lock(mutex_);
    const RunBegins& run = facts_.run;
    const bool once = run.validates() && report.on == EvaluationReport::On::test;
    const std::string when = once                ? "the best weights on the test data"
                             : report.ends_epoch ? fmt::format("epoch {}/{} done", report.epoch, run.epochs)
                                                 : fmt::format("step {} done", grouped(report.step));
    line(fmt::format("{} after {}: {} {}{}", when, duration(seconds_now() - started_), name_of(report.on),
                     in_words(report), report.best && !once ? "  (best)" : ""));
  }

  void note(const std::string& text) override {
    std::lock_guard lock(mutex_);
    line("note: " + text);
  }

  void end(const RunEnds& run) override {
    stop_drawing();
    const RunBegins& began = facts_.run;
    if (run.interrupted) {
      line(fmt::format("stopped after {}; saved. To go on: {} train resume={}", duration(run.seconds),
                       base::program_name(), began.folder.string()));
      return;
    }
    line(fmt::format("{} after {}: {}", run.stopped_early ? "stopped early" : "done", duration(run.seconds),
                     scores_of(began, run)));
    line("report      " + (began.folder / "report.html").string());
    line("weights     " + run.weights.string());
    line("checkpoint  " + run.checkpoint.string());
    line("log         " + (began.folder / "metrics.jsonl").string());
    if (!run.trace.empty()) line("trace       " + run.trace.string() + " (open it in ui.perfetto.dev)");
    if (std::string next = what_to_try_next(began); !next.empty()) line("try next    " + next);
  }

 private:
  void keep_drawing() {
    constexpr auto kBetween = std::chrono::milliseconds(200);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kBetween, [&] { return stop_; })) draw();
  }

  void stop_drawing() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (drawing_.joinable()) drawing_.join();
    if (drawn_) std::printf("\r\033[K");
    std::fflush(stdout);
    drawn_ = false;
  }

  // One line that is drawn over again; no wider than the terminal is now, so that it stays one.
  void draw() {
    winsize size{};
    const size_t width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    const double now = seconds_now();
    facts_.seconds_left = left_.left(now);
    facts_.seconds = now - since_;
    ++facts_.frame;
    std::printf("\r\033[K%s", progress_line(facts_, width).c_str());
    std::fflush(stdout);
    drawn_ = true;
  }

  void line(const std::string& text) {
    std::printf("%s%s\n", drawn_ ? "\r\033[K" : "", text.c_str());
    std::fflush(stdout);
    drawn_ = false;
  }

  std::mutex mutex_;  // of all below, while the thread runs
  std::condition_variable changed_;
  LineFacts facts_;
  TimeLeft left_;
  double started_ = 0, since_ = 0;  // when the run began; when it began to do what it does
  bool is_terminal_ = isatty(STDOUT_FILENO) == 1;
  bool drawn_ = false, stop_ = false;
  std::thread drawing_;
};

}  // namespace

std::string what_to_try_next(const RunBegins& run) {
  const bool is_built_in = run.data.starts_with("generated ");
  const std::string folder = run.folder.string(), program = base::program_name();
  if (run.model == "mnist_cnn" && is_built_in)
    return program + " train model=resnet18_small, or data=FOLDER with pictures or MNIST's files (docs/data.md)";
  if (is_built_in && !run.data_hint.empty())
    return fmt::format("{} train {}/config.yaml data=FOLDER, with {}", program, folder, run.data_hint);
  if (!run.predict_hint.empty()) return fmt::format("{} predict {} {}", program, folder, run.predict_hint);
  return {};
}

std::unique_ptr<Reporter> terminal_reporter() { return std::make_unique<TerminalReporter>(); }

}  // namespace bonfire::train
