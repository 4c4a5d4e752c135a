#pragma once
// What `bonfire train` does: trains, evaluates, saves, and can go on where it stopped.
//
//   train::Trainer trainer(train::load_config("configs/mnist.yaml"));
//   trainer.add(train::terminal_reporter());
//   train::RunEnds end = trainer.run();
//
// In a process that has joined a job (fleet::init) it trains as one of its ranks; where `place` names several devices,
// each of them is a rank, a thread of this process: docs/data-parallel.md.

#include <atomic>

#include "bonfire/train/config.h"
#include "bonfire/train/reporter.h"

namespace bonfire::train {

class Trainer {
 public:
  explicit Trainer(Config config);  // ConfigError for settings that are not built yet
  ~Trainer();

  void add(std::unique_ptr<Reporter> reporter);
  RunEnds run();
  void trace_to(const std::filesystem::path& file);  // a Chrome trace of the run, written when it ends; before run()

  // Each rank writes which samples it reads into the run's folder (train/sample_trace.h); before run().
  void trace_samples();

  // Of these weights (a safetensors file) on the test data, by exact counting. Images are brought to the mean and
  // deviation that the weights were trained with, where the file says them.
  EvaluationReport evaluate(const std::filesystem::path& weights);

  // Ends the run after the step at hand: it is saved, and can be resumed. Safe in a signal handler.
  static void request_stop();

 private:
  RunEnds run_on(const std::vector<Device>& places);
  RunEnds run_as_rank();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bonfire::train
