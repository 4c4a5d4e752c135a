#include "bonfire/parallel/pipeline/pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/comm/collectives.h"
#include "bonfire/comm/same_settings.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/optimizer_update.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/parallel/compared.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"
#include "bonfire/parallel/pipeline/saying_where.h"
#include "bonfire/parallel/pipeline/stage_runner.h"
#include "bonfire/runtime/plan_of_step.h"

namespace bonfire::pipeline {
namespace {

constexpr int64_t kSharedTag = int64_t{1} << 32;  // above those of values between programs

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Every rank gets all results: whoever has one not adds zeros. Of several micro-batches they are scalars, and become a
// list, f64 [micro-batches].
class ResultSharing {
 public:
  ResultSharing(Device device, bool as_lists) : device_(device), as_lists_(as_lists) {}

  std::vector<Tensor> operator()(const StageRunner::Results& results) {
    results_ = &results;
    std::vector<Tensor> inputs;
    for (size_t k = 0; k < results.of.size(); ++k) {
      const TensorSpec list{{results.micro_batches}, DType::f64, device_};
      if (is_own(k))
        inputs.insert(inputs.end(), results.of[k].begin(), results.of[k].end());
      else
        inputs.push_back(zeros_of(as_lists_ ? list : results.specs[k]));
    }
    const uint64_t before = StepContext::current().random.step;
    std::vector<Tensor> all = step_.run(inputs);
    StepContext::current().random.step = before;  // it draws nothing
    return all;
  }

 private:
  bool is_own(size_t result) const { return results_->ranks[result] == fleet::mesh().place(Axis::pipeline); }

  static Tensor zeros_of(const TensorSpec& spec) {
    return Tensor::from_bytes(std::vector<std::byte>(spec.bytes()), spec);
  }

  std::vector<Tensor> trace(std::span<const Tensor> inputs) const {
    NoGrad no_grad;
    std::vector<Tensor> all;
    size_t next = 0;
    for (size_t k = 0; k < results_->of.size(); ++k) {
      if (!is_own(k) || !as_lists_) {
        all.push_back(inputs[next++]);
      } else {
        std::vector<Tensor> parts;
        for (size_t i = 0; i < results_->of[k].size(); ++i)
          parts.push_back(reshape(inputs[next++].to(DType::f64), {1}));
        all.push_back(concat(parts, 0));
      }
      all.back() = comm::all_reduce(all.back(), Axis::pipeline);
    }
    return all;
  }

  Device device_;
  bool as_lists_;
  const StageRunner::Results* results_ = nullptr;  // of the call at hand
  CompiledStep step_{[this](std::span<const Tensor> inputs) { return trace(inputs); }};
};

Device device_of(const nn::Module& model) {
  const std::vector<Parameter> parameters = model.parameters();
  return parameters.empty() ? Device{} : parameters[0].device();
}

void require_shared_out(const nn::Module& model) {
  const nn::StateDict variables = model.state_dict();
  const bool is_cut = std::ranges::any_of(variables, [](const auto& one) { return !one.variable.slice().is_all(); });
  if (fleet::mesh().size(Axis::tensor) > 1 && !is_cut)
    throw_error<ConfigError>(
        "[pipeline] the mesh is {}, and every rank along its tensor axis has all of the model: call "
        "fleet::share_out_layers(model) before the optimizer is made, or leave that axis out",
        to_string(fleet::mesh()));
}

template <class Call>
auto or_tell(Call call) {
  try {
    return call();
  } catch (const std::exception& error) {  // the other stages wait for this one
    StepContext::current().tell_failure(error.what());
    throw;
  }
}

}  // namespace

struct Pipeline::State {
  nn::Module model;
  optim::Optimizer optimizer;
  PipelineOptions options;
  int rank;  // along the pipeline axis
  StageRunner runner;
  ResultSharing share;
  std::vector<Variable> own = {};  // parameters whose gradients this rank has
  bool prepared = false;
  bool adds_up = false;  // to the gradients of the batches before, which have not updated yet (accumulate_steps)
  CompiledStep reduce{[this](std::span<const Tensor>) { return trace_reduce(); }};
  CompiledStep update{[this](std::span<const Tensor> received) { return trace_update(received); }};

  void prepare(std::span<const TensorSpec> batch) {
    if (prepared) return;
    runner.prepare(batch);
    require_same_on_ranks();
    require_gradients_of_all_readers();
    for (const Parameter& parameter : model.parameters())
      if (contains(runner.ranks_of(parameter), rank) && parameter.requires_grad()) own.push_back(parameter);
    optimizer.lay_out_apart(own);
    for (const Axis axis : {Axis::tensor, Axis::data})
      if (fleet::mesh().size(axis) > 1) take_values_of_first(axis);
    note_own_parameters();
    prepared = true;
  }

  void require_same_on_ranks() const {
    if (fleet::world_size() == 1) return;
    comm::require_same(fleet::group(), "pipeline",
                       {{"pipeline.schedule", name_of(options.schedule)},
                        {"pipeline.micro_batches", std::to_string(options.micro_batches)},
                        {"pipeline.chunks", std::to_string(options.chunks)},
                        {"pipeline.cut", fmt::format("{}", fmt::join(runner.cut()->firsts(), ", "))}});
    comm::require_same(fleet::group(), "pipeline", fleet::compared_of(model, fleet::Slices::may_differ));
  }

  // A stage that reads a parameter, and has no part in its gradient, would never hear of an update.
  void require_gradients_of_all_readers() const {
    for (const auto& [name, parameter] : model.named_parameters()) {
      if (!parameter.requires_grad()) continue;
      const std::vector<int> having = runner.ranks_of(parameter.grad_variable());
      for (int reader : runner.ranks_of(parameter))
        if (!having.empty() && !contains(having, reader))
          throw_error<ConfigError>(
              "[pipeline] rank {} reads {} without a gradient (detached?), and rank {} trains it; cut so that both are "
              "in one stage",
              reader, name, having.front());
    }
  }

  // What local SGD averages over the replicas.
  void note_own_parameters() const {
    if (fleet::mesh().size(Axis::data) == 1) return;
    fleet::Job& job = *fleet::job();
    for (const Variable& parameter : own)
      if (!job.parameters.contains(&parameter.state()))
        job.parameters.emplace(&parameter.state(),
                               fleet::DistributedParameter{parameter, job.steps->names()->add(parameter.name())});
  }

  // Of what ranks along the axis hold alike: slices differ along the tensor axis.
  void take_values_of_first(Axis axis) const {
    comm::Group& alike = fleet::group(axis);
    for (const auto& [name, variable] : model.state_dict()) {
      const bool is_alike = axis == Axis::data || variable.slice().is_all();
      if (!contains(runner.ranks_of(variable), rank) || !is_alike) continue;
      std::vector<std::byte> bytes(variable.stored_spec().bytes());
      if (alike.rank() == 0) bytes = variable.save_stored();
      alike.broadcast({bytes.data(), bytes.size(), DType::u8}, 0);
      if (alike.rank() != 0) variable.load_stored(bytes);
    }
  }

  // REDUCE: each rank that has a part of a shared gradient gives it to the others, and all add them up alike.
  std::vector<Tensor> trace_reduce() const {
    NoGrad no_grad;
    PhaseScope phase(Phase::update);
    for (const SharedGradient& one : runner.shared_gradients())
      for (int other : one.ranks)
        if (other != rank) comm::send(one.gradient.stored(), Axis::pipeline, other, kSharedTag + one.number);
    return {};
  }

  std::vector<Tensor> receive_shared() {
    std::vector<Tensor> received;
    for (const SharedGradient& one : runner.shared_gradients())
      for (int other : one.ranks)
        if (other != rank)
          received.push_back(
              runner.receive(one.gradient.stored_spec(), other, kSharedTag + one.number,
                             fmt::format("[pipeline] {}, REDUCE of {}", runner.name(), one.gradient.name())));
    return received;
  }

  std::vector<Tensor> trace_update(std::span<const Tensor> received) {
    {
      NoGrad no_grad;
      PhaseScope phase(Phase::update);
      size_t next = 0;
      for (const SharedGradient& one : runner.shared_gradients()) {
        Tensor sum;
        for (int other : one.ranks) {
          const Tensor part = other == rank ? one.gradient.stored() : received[next++];
          sum = sum.defined() ? sum + part : part;
        }
        one.gradient.assign_stored(sum);
      }
      if (fleet::mesh().size(Axis::data) > 1 && all_say(StepContext::current().reduces_gradients))
        for (const Variable& parameter : own)
          parameter.grad_variable().assign_stored(
              comm::all_reduce(parameter.grad_variable().stored(), Axis::data, comm::Reduce::mean));
      if (options.clip_grad_norm) clip();
    }
    optimizer.step();
    optimizer.clear_grad();
    return {};
  }

  // By the norm of all stages' gradients; of a shared one the first rank that has it.
  void clip() const {
    std::vector<Tensor> gradients, counted;
    for (const Variable& parameter : own) {
      gradients.push_back(parameter.grad_variable().value());
      if (runner.ranks_of(parameter).front() == rank) counted.push_back(gradients.back());
    }
    const Tensor here = counted.empty() ? zeros({}, DType::f64, device_of(model)) : gradient_squares(counted);
    const Tensor squares = comm::all_reduce(here, Axis::pipeline);
    if (gradients.empty()) return;
    const Tensors results = clip_gradients(gradients, squares, Scalar(*options.clip_grad_norm));
    for (size_t i = 0; i < own.size(); ++i) own[i].grad_variable().assign(results[i + 1]);
  }

  std::vector<double> shares_of(const std::vector<int64_t>& rows) const {
    double all = 0;
    for (int64_t count : rows) all += static_cast<double>(count);
    std::vector<double> shares;
    for (int64_t count : rows) shares.push_back(static_cast<double>(count) / all);
    return shares;
  }

  std::vector<Tensor> train(std::span<const Tensor> batch, std::span<const double> weights) {
    std::vector<TensorSpec> specs;
    for (const Tensor& input : batch) specs.push_back(input.spec());
    prepare(specs);
    const std::vector<int64_t> rows = runner.rows_of(specs[0].shape[0]);
    if (!weights.empty() && weights.size() != rows.size())
      throw_error<ConfigError>("[pipeline] {} weights were given for {} micro-batches", weights.size(), rows.size());
    if (StepContext::current().without_reduction > 0)
      throw_error<ConfigError>(
          "[pipeline] train() reduces gradients and updates by itself, and a fleet::WithoutReduction asks it not to; "
          "leave that out: accumulate_steps of the strategy adds up the gradients of several batches");
    const std::vector<double> shares = shares_of(rows);
    const StageRunner::Results results = runner.run(batch, weights.empty() ? std::span(shares) : weights, adds_up);
    std::vector<Tensor> shared;
    saying_where([&] { return place_in_words("at the end of its schedule (REDUCE, U)"); },
                 [&] {
                   end_schedule();
                   shared = share(results);
                 });
    return shared;
  }

  std::string place_in_words(const char* where) const { return fmt::format("[pipeline] {}, {}", runner.name(), where); }

  void end_schedule() {
    StepContext& context = StepContext::current();
    const uint64_t step = context.random.step;
    if (all_say(context.update_is_due)) {
      if (!runner.shared_gradients().empty()) reduce.run({});
      const std::vector<Tensor> received = receive_shared();
      update.run(received);
    } else {
      optimizer.step();  // counts it
    }
    adds_up = !all_say(context.gradients_are_done);
    context.random.step = step;  // an update draws nothing
  }
};

Pipeline::Pipeline(nn::Module model, optim::Optimizer optimizer, Forward forward, PipelineOptions options) {
  if (const fleet::Job* job = fleet::job(); job != nullptr && !job->models.empty())
    throw_error<ConfigError>(
        "[pipeline] the model was given to fleet::distributed_model(); leave that out: a pipeline averages the "
        "gradients "
        "of its stages along the data axis by itself");
  require_shared_out(model);
  RunnerOptions running{.schedule = options.schedule,
                        .micro_batches = options.micro_batches,
                        .chunks = options.chunks,
                        .cut = options.cut,
                        .trains = true};
  const Device device = device_of(model);
  state_ = std::unique_ptr<State>(new State{.model = std::move(model),
                                            .optimizer = std::move(optimizer),
                                            .options = std::move(options),
                                            .rank = fleet::mesh().place(Axis::pipeline),
                                            .runner = StageRunner(std::move(forward), std::move(running)),
                                            .share = ResultSharing(device, true)});
}

Pipeline::~Pipeline() = default;

void Pipeline::prepare(std::span<const TensorSpec> batch) {
  or_tell([&] {
    saying_where([&] { return state_->place_in_words("before its first schedule"); }, [&] { state_->prepare(batch); });
  });
}

std::vector<Tensor> Pipeline::train(std::span<const Tensor> batch, std::span<const double> weights) {
  return or_tell([&] { return state_->train(batch, weights); });
}

PlannedPrograms Pipeline::plan(std::span<const TensorSpec> batch) {
  prepare(batch);
  PlannedPrograms planned = state_->runner.plan(batch);
  std::vector<TensorSpec> received;
  for (const SharedGradient& one : state_->runner.shared_gradients())
    received.resize(received.size() + one.ranks.size() - 1, one.gradient.stored_spec());
  planned.programs.push_back(
      {"U", runtime::plan_of_step([this](std::span<const Tensor> inputs) { return state_->trace_update(inputs); },
                                  received)});
  return planned;
}

std::vector<int64_t> Pipeline::rows_of(int64_t batch) const { return state_->runner.rows_of(batch); }
Schedule Pipeline::schedule() const {
  return make_schedule({.kind = state_->options.schedule,
                        .stages = fleet::mesh().size(Axis::pipeline),
                        .micro_batches = static_cast<int>(state_->options.micro_batches),
                        .chunks = state_->options.chunks});
}
int Pipeline::rank() const { return state_->rank; }
std::string Pipeline::name() const { return state_->runner.name(); }
const std::shared_ptr<const ForwardStages>& Pipeline::cut() const { return state_->runner.cut(); }
const std::optional<BalancedCut>& Pipeline::balanced() const { return state_->runner.balanced(); }
bool Pipeline::owns(const Variable& variable) const { return owner_of(variable) == state_->rank; }
bool Pipeline::holds(const Variable& variable) const {
  return contains(state_->runner.ranks_of(variable), state_->rank);
}
int Pipeline::owner_of(const Variable& variable) const {
  const std::vector<int> ranks = state_->runner.ranks_of(variable);
  return ranks.empty() ? 0 : ranks.front();
}
size_t Pipeline::slot_bytes() const { return state_->runner.slot_bytes(); }
void Pipeline::start_profile() { state_->runner.start_profile(); }
StageTimes Pipeline::stop_profile() { return state_->runner.stop_profile(); }
const std::vector<passes::Gathered>& Pipeline::gathered() const { return state_->runner.gathered(); }

struct PipelinedForward::State {
  StageRunner runner;
  ResultSharing share;
};

namespace {

RunnerOptions as_forward(std::shared_ptr<const ForwardStages> cut) {
  const int chunks = (static_cast<int>(cut->firsts().size()) + 1) / fleet::mesh().size(Axis::pipeline);
  return {.schedule = chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::gpipe,
          .micro_batches = 1,
          .chunks = chunks,
          .cut_like = std::move(cut),
          .trains = false};
}

}  // namespace

PipelinedForward::PipelinedForward(Forward forward, std::shared_ptr<const ForwardStages> cut, Device device)
    : state_(std::unique_ptr<State>(new State{.runner = StageRunner(
                                                  [forward = std::move(forward)](std::span<const Tensor> inputs) {
                                                    NoGrad no_grad;
                                                    return forward(inputs);
                                                  },
                                                  as_forward(std::move(cut))),
                                              .share = ResultSharing(device, false)})) {}

PipelinedForward::~PipelinedForward() = default;

std::vector<Tensor> PipelinedForward::operator()(std::span<const Tensor> batch) {
  return or_tell([&] { return state_->share(state_->runner.run(batch, {})); });
}

}  // namespace bonfire::pipeline
