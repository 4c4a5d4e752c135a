#pragma once
// What `bonfire train` does: trains, evaluates, saves, and can go on where it stopped.
//
//   train::Trainer trainer(train::load_config("configs/mnist.yaml"));
//   trainer.add(train::terminal_reporter());
//   train::RunEnds end = trainer.run();
//
// or, for what a program has of its own (docs/tasks.md):
//
//   train::Trainer trainer(config, my_model, my_task);
//   trainer.add({.evaluation = [](const train::EvaluationReport& report) { … }});
//   train::RunEnds end = trainer.fit(my_train, my_validation);
//
// In a process that has joined a job (fleet::init) it trains as one of its ranks; where `place` names several devices,
// each of them is a rank, a thread of this process: docs/data-parallel.md.

#include <atomic>

#include "bonfire/train/config/config.h"
#include "bonfire/train/report/reporter.h"
#include "bonfire/train/report/step_memory.h"
#include "bonfire/train/tasks/task.h"

namespace bonfire::train {

struct FitOptions {
  data::Transform transform = {};                       // of training samples: augmentation, other each epoch
  std::shared_ptr<const data::Dataset> test = nullptr;  // evaluated once, at the end, with the best weights
  std::string name = "the program's data";              // what reports call it
};

class Trainer {
 public:
  explicit Trainer(Config config);  // ConfigError for settings that are not built yet
  // With a model and a task of the program's own; fit() gives it the data. Any module is a models::Model that makes a
  // tensor, or several, of one. ConfigError for settings that say what is trained on what (model, data, image_size …).
  Trainer(Config config, models::Model model, std::shared_ptr<const Task> task);
  ~Trainer();

  void add(std::unique_ptr<Reporter> reporter);
  void add(Callbacks functions) { add(callbacks(std::move(functions))); }
  RunEnds run();
  // The same run for the program's own parts: the best weights are chosen on `validation`. Afterwards the model has the
  // last weights; RunEnds::weights names the file with the best. DataError for data that is empty.
  RunEnds fit(std::shared_ptr<const data::Dataset> train, std::shared_ptr<const data::Dataset> validation,
              FitOptions options = {});
  void trace_to(const std::filesystem::path& file);  // a Chrome trace of the run, written when it ends; before run()

  // Each rank writes which samples it reads into the run's folder (train/report/sample_trace.h); before run().
  void trace_samples();

  // Of these weights (a safetensors file) on the test data, by exact counting. Images are brought to the mean and
  // deviation that the weights were trained with, where the file says them.
  EvaluationReport evaluate(const std::filesystem::path& weights);
  // The same of the program's own model, which then has these weights.
  EvaluationReport evaluate(const std::filesystem::path& weights, std::shared_ptr<const data::Dataset> samples);

  // What a step of the run would need of memory, on each device of each rank that differs from others: of every stage
  // the first rank along the other axes. Nothing of the run is made or begun; its ranks are threads of this process
  // meanwhile.
  std::vector<StepMemory> memory();

  // Ends the run after the step at hand: it is saved, and can be resumed. Safe in a signal handler.
  static void request_stop();

 private:
  RunEnds run_whole();
  EvaluationReport evaluate_as(const std::filesystem::path& weights, EvaluationReport::On on);
  RunEnds run_on(const std::vector<Device>& places);
  RunEnds run_as_rank();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bonfire::train
