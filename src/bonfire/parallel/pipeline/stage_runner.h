#pragma once
// StageRunner: traces a step for one micro-batch, keeps this rank's stages of it (one, or as many as the schedule has
// chunks), and runs their programs for all micro-batches of a batch as the schedule says.
//
// A program is planned by itself and submitted like any other plan; F, B and W of a stage hand their values over in
// slots, each at one address for as long as the runner lives: as many as the schedule has. The programs of a device run
// in order, so a slot is free again when the last program that reads it has been submitted. What other stages send is
// received beside the queue (receiver.h), one program early; what is sent leaves from inside its program.
//
// A batch is cut into micro-batches of one size; the last one of a last batch may be smaller. That is another
// signature, traced and planned for itself.

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "bonfire/graph/tensor.h"
#include "bonfire/graph/variable.h"
#include "bonfire/parallel/pipeline/balanced_cut.h"
#include "bonfire/parallel/pipeline/forward_stages.h"
#include "bonfire/parallel/pipeline/schedule.h"
#include "bonfire/parallel/pipeline/simulator.h"
#include "bonfire/passes/shard.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::pipeline {

struct RunnerOptions {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int64_t micro_batches = 1;
  int chunks = 1;                                           // stages of each rank; more than one: interleaved only
  std::optional<std::vector<std::string>> cut = {};         // empty: balanced
  std::shared_ptr<const ForwardStages> cut_like = nullptr;  // instead: where another runner has the modules
  bool trains = true;                                       // else only F, of the whole batch at once
};

// The programs of a rank, and the bytes of all slots that a schedule takes.
struct PlannedPrograms {
  struct One {
    std::string name;
    std::shared_ptr<const runtime::Plan> plan;
  };
  std::vector<One> programs;
  size_t slot_bytes = 0;
};

// A gradient that several ranks have parts of.
struct SharedGradient {
  int64_t number;  // the same on all ranks
  Variable gradient;
  std::vector<int> ranks;  // along the pipeline axis, as all here
};

class StageRunner {
 public:
  StageRunner(Forward forward, RunnerOptions options);
  ~StageRunner();
  StageRunner(const StageRunner&) = delete;
  StageRunner& operator=(const StageRunner&) = delete;

  // Cuts the step for such a batch, if it has not been yet.
  void prepare(std::span<const TensorSpec> batch);

  // Of what prepare() has cut.
  const std::shared_ptr<const ForwardStages>& cut() const;
  const std::optional<BalancedCut>& balanced() const;           // why there; empty: it was cut as was said
  std::vector<int> ranks_of(const Variable& variable) const;    // that read or write it; none: the step does not use it
  const std::vector<SharedGradient>& shared_gradients() const;  // that this rank has a part of
  const std::vector<passes::Gathered>& gathered() const;        // over the tensor axis, in all stages
  std::string name() const;  // "stage 1 of 2"; of a rank with several: "rank 1 of 2 (stages 1, 3 of 4)"

  // How many rows each micro-batch of the batch has.
  std::vector<int64_t> rows_of(int64_t batch) const;

  struct Results {
    std::vector<std::vector<Tensor>> of;  // [results][micro-batches]; none where another rank has it
    std::vector<TensorSpec> specs;        // [results]
    std::vector<int> ranks;               // [results]
    int64_t micro_batches = 0;
  };
  // Runs all but REDUCE and U. A collective call along the pipeline. weights [micro-batches]: what each loss is
  // multiplied by. Where it trains, the gradients of this rank's parameters are written and not clear afterwards;
  // adds_up: added to those that are there.
  Results run(std::span<const Tensor> batch, std::span<const double> weights, bool adds_up = false);

  // Plans everything that run() would for such a batch, and runs nothing.
  PlannedPrograms plan(std::span<const TensorSpec> batch);

  // A message that this rank receives from another after those of the last run(), as a tensor that is awaited when it
  // is read.
  Tensor receive(const TensorSpec& spec, int from, int64_t tag, const std::string& what);

  // Times the programs of the runs between the two, after a first one: the median of each, in seconds.
  void start_profile();
  StageTimes stop_profile();

  size_t slot_bytes() const;  // of all slots that have been used so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bonfire::pipeline
