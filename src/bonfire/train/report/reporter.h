#pragma once
// Reporter: who is told how a run goes: the terminal, the log of metrics, the report page.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bonfire/data/dataset.h"
#include "bonfire/parallel/pipeline/schedule.h"
#include "bonfire/train/report/model_table.h"
#include "bonfire/train/report/step_memory.h"
#include "bonfire/train/tasks/metric.h"

namespace bonfire::train {

struct RunBegins {
  std::filesystem::path folder;
  std::string model, data, place, resumed_from = {};
  int64_t parameters = 0, train_samples = 0, test_samples = 0;
  int64_t validation_samples =
      0;                        // held back, on which the best weights are chosen; 0: they are chosen on the test data
  std::string unit = "images";  // what a sample is
  std::string pixels = {};      // what images are normalised by, in words; of text: empty
  std::string task = {};        // "image classification"
  std::vector<Metric> metrics = {};               // what evaluations tell; the first is the headline
  std::string predict_hint = {}, data_hint = {};  // of the task: train/tasks/task.h
  int64_t epochs = 0, steps_per_epoch = 0, total_steps = 0, batch_size = 0;
  int64_t steps_between_evaluations = 0;
  int64_t ranks = 1, replicas = 1;                  // replicas: of the model; batch_size is of each
  std::string mesh = {};                            // where ranks share a model: "data 2 × tensor 2"
  std::optional<pipeline::Schedule> schedule = {};  // of a model in stages
  int64_t first_step = 0;                           // of this process; more than 0 when resumed
  std::string config = {}, modules = {};            // as YAML; as a tree
  std::vector<ModelRow> layers = {};                // what each costs
  std::vector<std::string> class_names = {};
  std::string command = {}, version = {};  // how this process was started; of Bonfire
  // Of a run that is gone on with: settings that were changed, and what was accepted though it is another experiment.
  std::vector<std::string> changes = {}, other_than_was = {};

  bool counts_epochs() const { return total_steps == epochs * steps_per_epoch; }  // else so many steps were asked for
  bool validates() const { return validation_samples > 0; }
  std::string chosen_on() const;  // "6,000 validation images": what the best weights are chosen on
  Metric headline() const { return metrics.empty() ? loss_metric() : metrics[0]; }  // that they are chosen by
};

// What a run is doing. Told at every step and every batch of an evaluation: it must be cheap to take.
struct Progress {
  enum class Doing : uint8_t { compiling, training, evaluating, saving };
  Doing doing = Doing::compiling;  // compiling: the first step, for which kernels are timed too
  int64_t epoch = 0, step = 0;     // the epoch counted from 1; steps done in all
  int64_t done = 0, all = 0;       // steps of this epoch; batches of an evaluation
  double seconds_compiling = 0;    // of this process so far, in any of these
};

// Over the steps since the last one.
struct StepReport {
  int64_t epoch = 0, step = 0;  // both counted from 1, step through all epochs
  double loss = 0;
  std::vector<Score> scores = {};  // on the training samples, of the first metrics or all; none of masked words
  double lr = 0, samples_per_second = 0;
  // Shares of the time, the mean of all ranks; the rest is computing.
  double data_wait = 0, communication_wait = 0;
  std::vector<double> communication_waits = {};  // [ranks], where there are several
};

// What a step takes of memory: told once the first one that updates is planned, and again when it has been measured.
struct MemoryReport {
  std::vector<StepMemory> devices;  // of this process
  std::vector<std::string> budget;  // what keeping to memory_budget costs, in words
};

// After the last step of an epoch, and what was due then: an evaluation, a checkpoint.
struct EpochReport {
  int64_t epoch = 0, step = 0;  // both counted from 1
};

// One sample of an evaluation and what the model takes it for.
struct Prediction {
  int64_t index = 0, label = 0, predicted = 0;
  double probability = 0;  // of what was predicted
  data::Array image = {};  // u8 [H, W, C], where it is one
  std::string words = {};  // else what it is, in a line
};

struct EvaluationReport {
  enum class On : uint8_t { test, validation };
  On on = On::test;  // with validation images: the test data only once, at the end, with the best weights
  int64_t epoch = 0, step = 0;
  bool ends_epoch = true;  // false: inside one
  double loss = 0;
  std::vector<Score> scores = {};  // the headline first
  bool best = false;
  // Where the task has classes.
  std::vector<int64_t> confusion = {};  // [classes, classes]: how often a label (row) was taken for a class (column)
  // [10]: predictions with a confidence below 10 %, 20 %, …, and how many of them are wrong.
  std::vector<int64_t> by_confidence = {}, wrong_by_confidence = {};
  std::vector<Prediction> predictions = {};  // some: the most confident of the wrong ones, then a few that are right

  double headline() const { return scores.empty() ? loss : scores[0].value; }
  double score(std::string_view name) const;  // of that metric; ConfigError naming those there are
};

struct RunEnds {
  std::filesystem::path checkpoint = {}, weights = {}, trace = {};  // trace: empty when none was asked for
  double seconds = 0;
  double best_score = 0, last_score = 0;  // by the headline metric, both on what the best weights are chosen on
  std::optional<double> test_score = {};  // of the best weights, where they were chosen on other samples
  std::string samples = {};               // what the ledger proves (train/checkpoint/ledger.h)
  bool interrupted = false, stopped_early = false;
  bool was_complete = false;  // before it was gone on with: nothing was done
};

class Reporter {
 public:
  virtual ~Reporter() = default;
  virtual void begin(const RunBegins& run) = 0;
  virtual void progress(const Progress& /*now*/) {}
  virtual void step(const StepReport& report) = 0;
  virtual void evaluated(const EvaluationReport& report) = 0;
  virtual void epoch_ended(const EpochReport& /*report*/) {}
  virtual void memory(const MemoryReport& /*report*/) {}
  virtual void note(const std::string& text) = 0;  // something a person should know
  virtual void end(const RunEnds& run) = 0;

  // What it could not do, asked for after each event and told to all. A log that cannot be written costs its lines,
  // never the training.
  virtual std::string take_warning() { return {}; }   // as soon as it happens, once; empty: nothing
  virtual std::string missing() const { return {}; }  // after the end: what was not written; empty: nothing
};

const char* name_of(EvaluationReport::On on);          // "test", "validation"
std::string in_words(const EvaluationReport& report);  // "loss 0.0903, top-1 97.22 %, top-5 99.98 %"
std::string samples_in_words(const RunBegins& run);    // "20,000 images, 4,000 to test"
std::string when_of(const EvaluationReport& report);   // "epoch 3", or "step 500" inside one

// A reporter of functions: a program's callbacks. Any of them may be missing. They are called by the first rank,
// between steps; Trainer::request_stop() in one ends the run on all ranks.
struct Callbacks {
  std::function<void(const RunBegins&)> begin = {};
  std::function<void(const StepReport&)> step = {};  // each log_freq steps, and after the first
  std::function<void(const EvaluationReport&)> evaluation = {};
  std::function<void(const EpochReport&)> epoch = {};
  std::function<void(const RunEnds&)> end = {};
};
std::unique_ptr<Reporter> callbacks(Callbacks functions);

// What to do after a run, as a command or two that fit it; empty: there is nothing.
std::string what_to_try_next(const RunBegins& run);

// A line that is drawn anew several times a second when stdout is a terminal, else a line now and then.
std::unique_ptr<Reporter> terminal_reporter();

// folder/events.out.tfevents.…: the same numbers for TensorBoard.
std::unique_ptr<Reporter> tensorboard_log();

// folder/report.html, written anew after each evaluation from metrics.jsonl and what it was told: one page with curves,
// settings, the model, the confusion matrix and predictions, and nothing outside it. Add it after metrics_log().
std::unique_ptr<Reporter> report_page();

// One JSON object a line into folder/metrics.jsonl. What was written after `first_step` by a run that did not get to
// save is cut off.
std::unique_ptr<Reporter> metrics_log();

}  // namespace bonfire::train
