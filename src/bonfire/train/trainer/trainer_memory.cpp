#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/pipeline/stage_runner.h"
#include "bonfire/parallel/strategies/sharding.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/plan_of_step.h"
#include "bonfire/runtime/profile.h"
#include "bonfire/train/report/number_text.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

namespace {

// Two steps are under way while the next one is submitted.
constexpr size_t kStepsUnderWay = 3;

// Each variable once, where this rank holds it.
class VariableBytes {
 public:
  explicit VariableBytes(std::map<Device, StepMemory>& all) : all_(all) {}

  void add(const Variable& variable, size_t StepMemory::*what) {
    if (seen_.insert(&variable.state()).second) all_[variable.device()].*what += variable.stored_spec().bytes();
  }

 private:
  std::map<Device, StepMemory>& all_;
  std::set<const VariableState*> seen_;
};

size_t bytes_of(std::span<const TensorSpec> specs) {
  size_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += spec.bytes();
  return bytes;
}

std::string rank_in_words() {
  return fleet::world_size() == 1 ? "" : fmt::format("rank {} of {}", fleet::rank(), to_string(fleet::mesh()));
}

}  // namespace

std::vector<StepMemory> Trainer::State::memory_of_step() {
  prepare();
  const std::vector<TensorSpec> batch = specs_of_batch();
  model->train();
  if (accumulation != nullptr) accumulation->stand_at(true, true);
  pipeline::PlannedPrograms planned;
  if (stages) {
    planned = stages->plan(batch);
  } else {
    auto step = [this](std::span<const Tensor> inputs) { return step_on(inputs[0], inputs[1]); };
    planned.programs.push_back({"", runtime::plan_of_step(step, batch)});
  }

  return memory_of(planned, batch);
}

std::vector<StepMemory> Trainer::State::memory_of(const pipeline::PlannedPrograms& planned,
                                                  std::span<const TensorSpec> batch) const {
  std::map<Device, StepMemory> all;
  VariableBytes bytes(all);
  for (const auto& [name, variable] : model->state_dict())
    if (holds(variable)) bytes.add(variable, &StepMemory::parameters);
  for (const Variable& parameter : optimizer->parameters())
    if (holds(parameter)) bytes.add(parameter.grad_variable(), &StepMemory::gradients);
  if (const fleet::DataSharding* sharding = fleet::sharding_of_job())
    for (const Variable& sum : sharding->sums()) bytes.add(sum, &StepMemory::gradients);
  for (const Variable& parameter : optimizer->parameters())
    if (holds(parameter))
      for (const auto& [name, state] : optimizer->state_of(parameter)) bytes.add(state, &StepMemory::optimizer);
  for (const Variable& counts : optimizer->counts()) bytes.add(counts, &StepMemory::optimizer);
  if (average)
    for (const auto& [name, variable] : average->state())
      if (holds(variable)) bytes.add(variable, &StepMemory::average);

  StepMemory& own = all[place];
  own.slots = planned.slot_bytes;
  own.batches = kStepsUnderWay * bytes_of(batch);
  if (stages) own.batches += bytes_of(batch);  // in micro-batches
  own.made_ahead = 2 * static_cast<size_t>(config.num_workers) * bytes_of(batch);
  for (const auto& [program, plan] : planned.programs) {
    for (const TensorSpec& crossing : plan->crossings)
      all[crossing.device].crossings += (kStepsUnderWay - 1) * crossing.bytes();
    for (const runtime::BudgetOutcome& outcome : plan->budget) all[outcome.device].budget = to_string(outcome);
    for (const Device device : runtime::devices_of(*plan)) {
      StepMemory& here = all[device];
      TemporariesOverStep over = temporaries_over_step(*plan, device);
      if (over.arena < here.temporaries.arena) continue;
      here.temporaries = std::move(over);
      here.program = program;
    }
  }
  if (!stages) own.results = kStepsUnderWay * bytes_of(planned.programs[0].plan->outputs);
  std::vector<StepMemory> list;
  for (auto& [device, memory] : all) {
    memory.device = device;
    memory.rank = stages ? fmt::format("{} ({})", stages->name(), rank_in_words()) : rank_in_words();
    list.push_back(std::move(memory));
  }
  return list;
}

// In stages the schedule is drawn instead.
void Trainer::State::tell_memory(std::span<const TensorSpec> batch) {
  if (stages) return;
  if (budgeted_since == 0 && !memory_is_told) {
    memory_is_told = true;
    const std::shared_ptr<runtime::Plan> plan = runtime::cached_plans().front();  // that of the step just submitted
    memory_told.devices = memory_of({.programs = {{"", plan}}}, batch);
    for (const runtime::BudgetOutcome& outcome : plan->budget) {
      const std::string words = plan->budget.size() > 1
                                    ? fmt::format("{}: {}", to_string(outcome.device), to_string(outcome))
                                    : to_string(outcome);
      memory_told.budget.push_back(words);
      note(words);
    }
    tell(&Reporter::memory, memory_told);
    if (plan->budget.empty()) return;
    budgeted = plan;
    budgeted_since = step;
    return;
  }
  if (budgeted) measure_budget();
}

// A few steps are looked at once it is warm.
void Trainer::State::measure_budget() {
  constexpr int64_t kWarm = 3, kMeasured = 5;  // steps
  if (step == budgeted_since + kWarm) {
    runtime::start_profile(*budgeted);
    // Not what timing kernels took.
    for (const runtime::BudgetOutcome& outcome : budgeted->budget) reset_most_storage(outcome.device);
  }
  if (step < budgeted_since + kWarm + kMeasured) return;
  double once = 0, again = 0;
  for (const runtime::NodeTime& time : runtime::profile_of(*budgeted))
    (time.note->again ? again : once) += time.seconds;
  runtime::stop_profile(*budgeted);
  for (const runtime::BudgetOutcome& outcome : budgeted->budget) {
    const size_t taken = storage_use(outcome.device).most + runtime::peak_bytes(*budgeted, outcome.device);
    memory_told.budget.push_back(fmt::format("measured on {}: memory {}, step +{:.0f} %", to_string(outcome.device),
                                             byte_text(static_cast<double>(taken)), 100 * again / once));
    note(memory_told.budget.back());
  }
  tell(&Reporter::memory, memory_told);
  budgeted = nullptr;
}

std::vector<StepMemory> Trainer::memory() {
  State& state = *state_;
  if (!state.config.resume.empty())
    throw_error<ConfigError>("[inspect] memory is of a configuration, and resume names a run; give its config.yaml");
  const size_t places = places_of(state.config).size();
  const auto ranks = static_cast<int>(std::max<int64_t>(state.config.num_gpus, static_cast<int64_t>(places)));
  if (ranks == 1) {
    const State::WhileDistributed scope{state};
    state.use_settings();
    return state.memory_of_step();
  }
  const auto groups = comm::local_groups(ranks);
  std::mutex mutex;
  std::map<int, std::vector<StepMemory>> of_stages;
  std::exception_ptr failure;
  auto as_rank = [&](int rank) {
    try {
      fleet::join(groups[static_cast<size_t>(rank)], mesh_of(state.config));
      Trainer other(state.config);
      other.state_->own = state.own;
      const State::WhileDistributed scope{*other.state_};
      std::vector<StepMemory> own = other.state_->memory_of_step();
      const Mesh& mesh = fleet::mesh();
      const std::lock_guard lock(mutex);
      if (mesh.place(Axis::data) == 0 && mesh.place(Axis::tensor) == 0)
        of_stages[mesh.place(Axis::pipeline)] = std::move(own);
    } catch (const std::exception& error) {
      groups[static_cast<size_t>(rank)]->abort(error.what());
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    try {
      fleet::leave();
    } catch (const Error&) {  // a rank has failed
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(as_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  std::vector<StepMemory> all;
  for (auto& [stage, own] : of_stages) all.insert(all.end(), own.begin(), own.end());
  return all;
}

}  // namespace bonfire::train
