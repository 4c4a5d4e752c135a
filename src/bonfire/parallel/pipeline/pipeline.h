#pragma once
// Pipeline: trains a model in stages, one on each rank along the mesh's pipeline axis, or several (interleaved).
//
//   fleet::join(group, {.pipeline = 2});
//   pipeline::Pipeline pipeline(model, optimizer,
//                               [&](std::span<const Tensor> batch) -> std::vector<Tensor> {
//                                 return {cross_entropy(model(batch[0]), batch[1])};
//                               },
//                               {.micro_batches = 8, .cut = {{"classifier"}}});
//   for (auto& [image, label] : batches) pipeline.train({{image, label}});   // the same batch on all stages
//
// The model is written as for one device. All ranks trace the whole step for a micro-batch and keep their stage of it
// (cut_stages.h), so a rank has memory for its own parameters, their gradients and their optimizer state alone. A step
// is that of one device that adds up the gradients of as many micro-batches: the same random numbers, batch statistics
// of each micro-batch, gradients that are clipped by the norm over all stages. A parameter that several stages use (a
// tied one) is held by each of them, and its gradient summed between them; it counts once. Along the data axis
// gradients are averaged once a step.
//
// Where the mesh has a tensor axis, too, ranks along it share each stage: fleet::share_out_layers(model) comes before
// the optimizer is made.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bonfire/nn/module.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/parallel/pipeline/balanced_cut.h"
#include "bonfire/parallel/pipeline/forward_stages.h"
#include "bonfire/parallel/pipeline/schedule.h"
#include "bonfire/parallel/pipeline/simulator.h"

namespace bonfire::passes {
struct Gathered;  // passes/shard.h
}  // namespace bonfire::passes

namespace bonfire::pipeline {

struct PlannedPrograms;  // stage_runner.h

struct PipelineOptions {
  int64_t micro_batches = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;                                    // stages of each rank; more than one: interleaved only
  std::optional<std::vector<std::string>> cut = {};  // the first module of each further stage; empty: balanced
  std::optional<double> clip_grad_norm = {};         // over all stages
};

class Pipeline {
 public:
  // The forward function gives the loss, the mean over the micro-batch, and other results. ConfigError where this rank
  // has joined no job with a pipeline, or the options cannot be.
  Pipeline(nn::Module model, optim::Optimizer optimizer, Forward forward, PipelineOptions options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Cuts the step for such batches, before the first of them comes: from then on it is known what this rank holds. A
  // collective call. The model must be in train mode, here and in train().
  void prepare(std::span<const TensorSpec> batch);

  // What train() would run for such a batch: F, B, W and the update. Nothing runs.
  PlannedPrograms plan(std::span<const TensorSpec> batch);

  // One step on a batch, which all stages have. weights: what the gradient of each micro-batch counts; none: its share
  // of the rows. Gives each result of all micro-batches, f64 [micro-batches], on all stages; scalars alone.
  std::vector<Tensor> train(std::span<const Tensor> batch, std::span<const double> weights = {});
  std::vector<int64_t> rows_of(int64_t batch) const;  // of each micro-batch of so many rows

  Schedule schedule() const;  // of a batch with all its micro-batches
  int rank() const;           // along the pipeline axis: the first of its stages
  std::string name() const;   // "stage 1 of 2"; where a rank has several: "rank 1 of 2 (stages 1, 3 of 4)"
  const std::shared_ptr<const ForwardStages>& cut() const;  // null before prepare()
  const std::optional<BalancedCut>& balanced() const;       // why it is cut there; empty: that was said
  bool holds(const Variable& variable) const;               // whether this rank uses it
  // The first of the ranks that hold it; of a variable that none uses the first one of all.
  int owner_of(const Variable& variable) const;
  bool owns(const Variable& variable) const;
  size_t slot_bytes() const;  // of values between programs
  // Times this rank's F, B and W in the steps between the two, after a first one: medians, in seconds.
  void start_profile();
  StageTimes stop_profile();
  // For ops that have no rule for parts, over the tensor axis, in all stages.
  const std::vector<passes::Gathered>& gathered() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs a forward function in stages, without gradients: what an evaluation does. All stages give the whole batch and
// get all results. The model must be in eval mode.
class PipelinedForward {
 public:
  PipelinedForward(Forward forward, std::shared_ptr<const ForwardStages> cut, Device device = {});
  ~PipelinedForward();
  std::vector<Tensor> operator()(std::span<const Tensor> batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bonfire::pipeline
