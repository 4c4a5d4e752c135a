#pragma once
// The inside of a Trainer, for trainer*.cpp: trainer.cpp has the run, trainer_steps.cpp the loop over its steps,
// trainer_fit.cpp what a program gives it of its own, trainer_checkpoints.cpp what is saved and taken
// up again, trainer_resume.cpp which run is gone on with and how, trainer_evaluation.cpp what is counted on the test
// data, trainer_pipeline.cpp what is other for a model in stages, trainer_balance.cpp which rank trains on how much,
// trainer_memory.cpp what a step will need of memory,
// trainer_replicas.cpp whether all ranks still have the same weights, trainer_samples.cpp which samples were trained
// on, trainer_trace.cpp what a trace has of the nodes, trainer_progress.cpp what is told of the run besides.

#include <deque>
#include <functional>
#include <optional>
#include <set>

#include "bonfire/data/loader.h"
#include "bonfire/graph/trace.h"
#include "bonfire/models/make.h"
#include "bonfire/nn/other_values.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/optim/weight_average.h"
#include "bonfire/parallel/balance.h"
#include "bonfire/parallel/pipeline/pipeline.h"
#include "bonfire/parallel/replica_check.h"
#include "bonfire/parallel/sampler.h"
#include "bonfire/parallel/strategies/accumulation.h"
#include "bonfire/parallel/strategies/local_sgd.h"
#include "bonfire/runtime/compile.h"
#include "bonfire/runtime/plan.h"
#include "bonfire/train/checkpoint/checkpoint_writer.h"
#include "bonfire/train/checkpoint/fingerprint.h"
#include "bonfire/train/checkpoint/ledger.h"
#include "bonfire/train/checkpoint/resume.h"
#include "bonfire/train/config/config_rules.h"
#include "bonfire/train/data/open_data.h"
#include "bonfire/train/report/memory_table.h"
#include "bonfire/train/report/sample_trace.h"
#include "bonfire/train/report/time_shares.h"
#include "bonfire/train/tasks/known_tasks.h"
#include "bonfire/train/trainer.h"
#include "bonfire/train/trainer/between_ranks.h"

namespace bonfire::train {

inline constexpr const char* kLoopTrack = "training loop";  // of a timeline

// What a program has given in place of what a configuration names.
struct OwnParts {
  models::Model model;
  std::shared_ptr<const Task> task;
  std::shared_ptr<const data::Dataset> train = nullptr, validation = nullptr;
  FitOptions options = {};
  bool is_copied = false;          // the model's variables are: a thread for each device uses its own
  std::string model_name() const;  // of its type
  std::string structure() const;   // that, and a hash over names, shapes and types of what it holds
};

struct Trainer::State {
  // Only when a trace is asked for, and before all who note their times in it. Nodes are traced over some steps near
  // the beginning, the rest throughout.
  std::unique_ptr<Timeline> timeline;
  std::filesystem::path trace_file;

  Config config;
  std::vector<std::unique_ptr<Reporter>> reporters;
  std::filesystem::path folder;
  Device place;
  std::optional<OwnParts> own;
  OpenedData opened;
  std::optional<models::Model> model;
  std::optional<optim::Optimizer> optimizer;
  std::optional<optim::WeightAverage> average;
  std::unique_ptr<data::DataLoader> train, test, validation;  // the last: where samples are held back
  Scalar weight = 1;                                          // of the loss of the batch at hand

  int64_t step = 0;         // done
  int64_t total_steps = 0;  // when the run ends
  // By the headline metric, on the validation samples where there are some; the last: of the best weights, once the run
  // is over.
  std::optional<double> best_score, last_score, test_score;
  int64_t saved_step = -1;  // of the checkpoint saved last
  int64_t evaluations_without_gain = 0;
  std::filesystem::path best_checkpoint, last_checkpoint;

  std::unique_ptr<pipeline::Pipeline> stages;  // null: each replica has the whole model
  std::set<const VariableState*> held;         // where there are stages: what is this one's, of the optimizer too

  std::optional<fleet::ReplicaCheck> replicas;  // where there are several ranks
  int64_t replicas_step = 0;                    // at which they were hashed last

  Ledger ledger;                              // what the steps were trained on
  bool samples_are_traced = false;            // as was asked for
  std::unique_ptr<SampleTrace> sample_trace;  // of this rank

  int64_t first_step = 0;
  std::optional<Turn> evaluations, checkpoints;  // when they are due
  struct Due {
    bool evaluation = false, checkpoint = false;
    explicit operator bool() const { return evaluation || checkpoint; }
  } due, due_by_clock;  // after the step at hand, inside an epoch; the clock is the first rank's
  std::vector<std::shared_ptr<runtime::Plan>> traced_plans;

  // Of a run that is gone on with.
  bool goes_on = false, resume_anyway = false;
  std::filesystem::path resumed_from;       // the checkpoint; only the first rank knows
  std::vector<Change> changes;              // of its settings
  std::vector<std::string> other_than_was;  // what makes it another experiment, where that was accepted
  bool is_other_test_data = false;          // than the checkpoint's scores are of
  Fingerprint fingerprint;

  std::unique_ptr<RunLock> lock;             // only the first rank has one, too
  std::unique_ptr<CheckpointWriter> writer;  // only the first rank has one, and all where they hold slices
  bool writes_together = false;              // they do
  bool agreed_to_stop = false;               // by all ranks

  // What the strategy does in the steps of the thread that trains or evaluates, while it does.
  std::optional<fleet::detail::DistributedWhile> distributed;
  LocalSgd* local = nullptr;                    // where ranks train on their own; the job's
  fleet::Accumulation* accumulation = nullptr;  // where gradients add up; the job's
  struct WhileDistributed {
    State& state;
    ~WhileDistributed() {
      state.local = nullptr;
      state.accumulation = nullptr;
      state.distributed.reset();
    }
  };

  // Where shares of the batch follow the ranks' speed.
  std::optional<Balance> balance;
  struct OwnTime {
    double seconds = 0;   // of this rank's own work, in the steps of the window so far
    double since = 0;     // what own_seconds() was when they were last counted
    double for_data = 0;  // seconds that next batches have taken, in all
    int64_t rows = 0;     // samples of these steps, stand-ins too
  } own_time;
  double agreeing = 0;  // seconds that steps have begun later since ranks had to agree on them, in all
  bool told_collectives = false, told_gathers = false;  // what a step communicates

  // A batch, and what the loader said of it.
  struct Taken {
    data::Batch batch;
    data::Share share;
    data::LoaderPosition begin, end;
    std::vector<uint32_t> numbers;
    int64_t targets = 0;  // of this rank, where they are weighed
  };

  template <class Event>
  void tell(void (Reporter::*event)(const Event&), const Event& what) const {
    if (!is_first_rank()) return;
    for (auto& reporter : reporters) (*reporter.*event)(what);
    for (auto& reporter : reporters)
      if (std::string warning = reporter->take_warning(); !warning.empty()) note(warning);
  }
  void note(const std::string& text) const {
    if (!is_first_rank()) return;
    for (auto& reporter : reporters) reporter->note(text);
  }

  // Epochs are counted by position, not by steps: these may have been of other sizes before a resume.
  double total_epochs() const {
    if (!config.steps) return static_cast<double>(config.epochs);
    return static_cast<double>(*config.steps) / static_cast<double>(train->batches_per_epoch());
  }
  double epochs_done() const;
  int64_t own_batch() const;  // of this rank
  int64_t global_batch() const { return own_batch() * replicas_of_model(); }
  static int replicas_of_model() { return fleet::mesh().size(Axis::data); }  // each with samples of its own
  // Batches differ in what they count for: on several ranks, at the end of an epoch, and where gradients add up.
  bool weighs() const { return replicas_of_model() > 1 || config.strategy.accumulate_steps > 1 || !config.drop_last; }
  bool must_stop() const;
  static bool asked_to_stop();  // this process
  size_t sums_of_a_step = 0;    // metrics that training steps add up
  const Task& task() const { return *opened.task; }
  const VariableCopies* evaluated_values() const { return average ? &average->copies() : nullptr; }
  std::string model_name() const { return own ? own->model_name() : config.model; }

  void use_settings() const;  // ConfigError for those that cannot be
  void prepare();
  void make_model();
  void require_same_first_weights() const;
  void require_batch_fits() const;  // into the memory
  void open_loaders();
  std::function<void(const data::MadeBatch&)> batches_on_timeline(const char* part) const;
  OpenedData own_data() const;
  Tensor example() const;                                     // what the model is given of one sample, zeros
  void take_task_from(const std::filesystem::path& weights);  // as the file says, where it does

  void settle();               // which run this is and by which settings, on all ranks
  void use_settings_of_run();  // and of what was given beside resume
  void compare_with_checkpoint();
  bool is_complete() const;
  RunEnds tell_complete() const;
  void begin_or_resume();
  void restore(const std::filesystem::path& checkpoint);
  int64_t steps_in_all() const;  // of the run
  void set_later_checkpoints_aside();
  void require_best_weights();
  void forget_best();
  nn::SafetensorsMetadata weights_metadata() const;
  void load_tensors(const std::filesystem::path& checkpoint);
  std::string run_state() const;  // where the run is, as JSON
  void take_run_state(const std::string& json, const std::string& source);
  void save();
  CheckpointSource checkpoint_source() const;  // but for the state of the run
  bool has_slices() const;                     // on any rank. A collective call
  void make_writer();
  void save_gathered(const WeightsFile& file) const;

  void show_steps(const data::LoaderPosition& at, int64_t epoch) const;  // of the epoch, done so far
  void show_saving() const;
  void show(Progress::Doing doing, int64_t epoch, int64_t done = 0, int64_t all = 0) const;
  void note_hints() const;  // at the start
  void note_collectives();  // of a step, as soon as one is compiled
  void note_gathers();      // along the tensor axis, likewise
  TimeSpent time_spent() const;
  static void share_time(StepReport& report, const TimeShares& own);  // with all ranks

  std::string place_in_words() const;
  RunBegins beginning() const;
  RunEnds train_all();
  bool train_epoch(int64_t epoch);  // until its end, or something is due inside it; false: asked to stop inside it
  bool evaluate_and_save(int64_t epoch);   // what is due after that; false: no gain for long enough, stop
  void check_replicas(bool updated);       // after each step
  void compare_replicas();                 // at once
  void note_samples(const Taken& taken);   // of the step's batch
  void finish_ledger(RunEnds& end) const;  // what it proves
  int64_t updates_per_epoch() const;
  int64_t updates_done() const;  // by the position: gradients never add up across epochs

  std::deque<Taken> ahead;                 // the rest of what adds up to an update, where its targets had to be counted
  struct Adding {                          // batches whose gradients add up
    int64_t samples = 0;                   // of all ranks
    int64_t own_targets = 0, targets = 0;  // of this rank; of all ranks
    bool counts = false;                   // the task does, else every sample is a target
    bool begins = true;                    // with the batch at hand
  } adding;
  int64_t batches_until_update() const;
  int64_t samples_until_update() const;
  Taken take();
  Taken next_batch(bool begins_update);
  // Targets that count, in a label that is there; empty: every sample is one.
  std::optional<int64_t> count_targets(const Tensor& label) const;
  void agree(const Taken& taken);     // before each step: on its weight, and whether to stop
  double own_seconds() const;         // computing and waiting for data, never for other ranks
  void count_seconds();               // of the steps since the last call into the window
  void balance_shares(int64_t rows);  // after each step, of so many samples here
  void trace_nodes();                 // before each step
  void collect_nodes();
  void write_trace(RunEnds& end) const;

  // values: in place of the model's own; null: those.
  EvaluationReport measure(EvaluationReport::On on, int64_t epoch, const VariableCopies* values) const;
  void share_buffers() const;
  void share_weights();  // of ranks that train on their own; before they are evaluated or saved
  bool evaluate(int64_t epoch, bool ends_epoch);  // false: no gain for long enough, stop
  void evaluate_best_on_test_data(int64_t epoch);

  // trainer_pipeline.cpp
  static bool in_stages();  // the ranks of a replica
  void make_stages();
  std::optional<std::vector<std::string>> chosen_cut() const;
  void begin_with_own_weights();  // of this stage: of a file, where the run begins so, and their running mean
  bool holds(const Variable& variable) const;  // this rank; of a state of the optimizer too
  nn::StateDict held_of(nn::StateDict all) const;
  RunEnds train_all_in_stages();                            // what is lost on the way says where that was
  std::vector<Tensor> train_in_stages(const Taken& taken);  // the results of a step
  std::optional<int64_t> count_targets_of(const Tensor& label, int64_t begin, int64_t rows) const;
  struct Evaluated {
    Outputs outputs;
    Tensor loss, targets;
    std::vector<Tensor> sums;
  };
  Evaluated evaluate_batch(const Tensor& input, const Tensor& label) const;
  using Evaluator = std::function<Evaluated(const Tensor& input, const Tensor& label)>;
  Evaluator evaluator() const;
  // With the model's own values, and with their running mean, once each is made: of stages they keep plans.
  mutable Evaluator own_evaluator = {}, mean_evaluator = {};
  void load_best_of_stage(nn::OtherValues& best) const;
  void share_counts() const;  // before a checkpoint
  void save_from_stages(const WeightsFile& file) const;

  class Tally;
  std::optional<Compiled<std::vector<Tensor>>> training_step;
  Compiled<std::vector<Tensor>> make_step();
  std::vector<Tensor> step_on(const Tensor& input, const Tensor& label);
  std::vector<TensorSpec> specs_of_batch() const;

  // trainer_memory.cpp
  std::vector<StepMemory> memory_of_step();  // [devices of this rank]
  std::vector<StepMemory> memory_of(const pipeline::PlannedPrograms& planned, std::span<const TensorSpec> batch) const;
  void tell_memory(std::span<const TensorSpec> batch);  // after steps that update
  void measure_budget();
  MemoryReport memory_told;
  bool memory_is_told = false;
  std::shared_ptr<const runtime::Plan> budgeted;  // while what its budget costs is to be measured
  int64_t budgeted_since = 0;                     // the step
};

}  // namespace bonfire::train
