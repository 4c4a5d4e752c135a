#pragma once
// Task: what a model is trained for. It says what the model is given, what its outputs are worth, and what of that
// people are told. The trainer, evaluations, reports and predictions know tasks, never models.
//
//   auto regression = train::make_task({
//       .name = "regression",
//       .loss = [](const train::Outputs& outputs, const Tensor& label) { return mse_loss(outputs[0], label); },
//       .metrics = {{.metric = {.name = "rmse", .unit = train::Metric::Unit::number, .higher_is_better = false},
//                    .sum = [](const train::Outputs& outputs, const Tensor& label) {
//                      return sum(square(outputs[0] - label));
//                    },
//                    .of_mean = [](double mean) { return std::sqrt(mean); }}}});
//
// or a class of its own, where that is not enough: docs/tasks.md. A task is never changed, and where a process trains
// on several devices their threads use it at once. What it is given of a batch is on the model's device.

#include <functional>
#include <memory>
#include <span>

#include "bonfire/data/dataset.h"
#include "bonfire/models/make.h"
#include "bonfire/nn/safetensors.h"
#include "bonfire/train/tasks/metric.h"

namespace bonfire::train {

struct EvaluationReport;

using Outputs = std::vector<Tensor>;  // of a model: Model::outputs

// What an evaluation counts besides its metrics, on the host, of this rank's samples.
class Judge {
 public:
  virtual ~Judge() = default;
  // The outputs are not computed yet: whatever is read of them computes all that the trainer wants of the batch too.
  // indices [N]: of the samples in the data set.
  virtual void add(const Outputs& outputs, const Tensor& label, std::span<const int64_t> indices) = 0;
  virtual void finish(EvaluationReport& report) = 0;  // of all ranks: a collective call
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string name() const = 0;                   // "image classification"
  virtual std::string unit() const { return "samples"; }  // what samples are, in the plural

  // --- a step: traced, so nothing may be read ------------------------------------------------------------------------

  virtual Tensor input(const Tensor& batch) const { return batch; }  // what the model is given
  // The mean over the targets that count; rank 0.
  virtual Tensor loss(const Outputs& outputs, const Tensor& label) const = 0;
  // How many targets of a batch count: i64, rank 0. Ranks and micro-batches are weighted by it. An undefined tensor, as
  // here: every sample is one.
  virtual Tensor targets(const Tensor& /*label*/) const { return {}; }

  // --- metrics -------------------------------------------------------------------------------------------------------

  // The first is the headline, by which the best weights are chosen. None: the loss is.
  virtual std::vector<Metric> metrics() const { return {}; }
  // Rank 0 each; added up over all samples of all ranks they are what values() is given, so that a metric is exact
  // whichever rank had which samples.
  virtual std::vector<Tensor> sums(const Outputs& /*outputs*/, const Tensor& /*label*/) const { return {}; }
  // The first of these sums, or all: what is computed in training steps too.
  virtual std::vector<Tensor> training_sums(const Outputs& outputs, const Tensor& label) const {
    return sums(outputs, label);
  }
  // Of the metrics, in their order; of fewer sums, of the first of them. As here: each sum is that of a mean over the
  // targets.
  virtual std::vector<double> values(std::span<const double> sums, double targets) const;

  // --- evaluations, and what is said of a run ------------------------------------------------------------------------

  virtual std::unique_ptr<Judge> judge(const data::Dataset& /*samples*/) const { return nullptr; }
  // ConfigError where the model cannot take what this gives it. It has been made and is on the CPU.
  virtual void check_model(const models::Model& /*model*/, const std::string& /*name*/) const {}
  // What a file of weights says, so that they are put to use as they were trained; and a task that is as a file says
  // (null: this one is).
  virtual nn::SafetensorsMetadata metadata() const { return {}; }
  virtual std::shared_ptr<const Task> as_trained(const nn::SafetensorsMetadata& /*said*/) const { return nullptr; }
  // What to do after a run, where the program can: what `bonfire predict RUN` is given, and how data of the user's own
  // is called ("pictures of yours (docs/data.md)").
  virtual std::string predict_hint() const { return {}; }
  virtual std::string data_hint() const { return {}; }
};

// --- a task of functions ---------------------------------------------------------------------------------------------

using OutputsAndLabel = std::function<Tensor(const Outputs& outputs, const Tensor& label)>;

struct MetricFunctions {
  Metric metric;
  OutputsAndLabel sum;                              // over the batch; rank 0
  std::function<double(double mean)> of_mean = {};  // of the mean over all targets; empty: that is it
};

struct TaskFunctions {
  std::string name, unit = "samples";
  std::function<Tensor(const Tensor& batch)> input = {};    // empty: as it is
  OutputsAndLabel loss;                                     // the mean over the targets that count
  std::function<Tensor(const Tensor& label)> targets = {};  // empty: every sample is one
  std::vector<MetricFunctions> metrics = {};                // the headline first
};

std::shared_ptr<const Task> make_task(TaskFunctions functions);  // ConfigError without a name, a loss or a sum

std::vector<Score> scores_of(const Task& task, std::span<const double> sums, double targets);
Metric headline_of(const Task& task);

}  // namespace bonfire::train
