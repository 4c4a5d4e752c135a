#include "bonfire/parallel/pipeline/stage_runner.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <new>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/comm/same_settings.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/pipeline/cut_stages.h"
#include "bonfire/parallel/pipeline/micro_batch_trace.h"
#include "bonfire/parallel/pipeline/receiver.h"
#include "bonfire/parallel/pipeline/saying_where.h"
#include "bonfire/parallel/pipeline/stage_programs.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"
#include "bonfire/runtime/submit.h"

namespace bonfire::pipeline {
namespace {

// What this rank does of the step for micro-batches of certain shapes.
struct Signature : MicroBatchTrace {
  std::vector<bool> reads_input;   // [inputs]
  std::vector<int> result_ranks;   // [results]
  std::vector<StagePrograms> own;  // [chunks]: this rank's stages
  uint64_t last_run = 0;

  StagePrograms& stage_of(const Item& item) { return own[static_cast<size_t>(item.chunk)]; }
};

// Where a micro-batch is in a chunk: what its programs have left, and in which slots.
struct UnderWay {
  std::vector<Tensor> values;  // [values]
  int activations = -1, gradients = -1;
};

TensorSpec with_rows(TensorSpec spec, int64_t rows) {
  if (spec.shape.rank() == 0) throw_error<ShapeError>("[pipeline] an input of the step is a scalar, expected rows");
  spec.shape[0] = rows;
  return spec;
}

bool is_part(Work work) { return work == Work::forward || work == Work::backward || work == Work::weights; }

Part part_of(Work work) {
  return work == Work::forward ? Part::forward : work == Work::backward ? Part::backward : Part::weights;
}

}  // namespace

struct StageRunner::State {
  Forward forward;
  RunnerOptions options;
  int rank, ranks;  // along the pipeline axis
  Scalar weight = 1;
  int64_t rows = 0;                                 // of a micro-batch
  std::shared_ptr<const ForwardStages> where = {};  // of the first trace; null: there is none yet
  std::optional<BalancedCut> balanced = {};         // where nobody said where to cut
  std::vector<std::unique_ptr<Signature>> signatures = {};
  std::map<const VariableState*, std::vector<int>> holders = {};
  std::vector<SharedGradient> shared = {};
  std::vector<passes::Gathered> gathered = {};
  std::map<const VariableState*, Variable> gradients = {};  // of all stages: the parameters that have them
  std::vector<Variable> written = {};                       // parameters whose gradients this rank writes
  uint64_t runs = 0;
  std::vector<Edge> edges = {};
  std::map<int, std::unique_ptr<Schedule>> schedules = {};                       // by micro-batches
  std::map<int, std::unique_ptr<Receiver>> receivers = {};                       // by peer
  std::map<std::tuple<Phase, int, int>, std::shared_ptr<Completion>> free = {};  // phase, chunk, slot: its last reader
  std::set<std::string> agreed = {};  // batches whose messages all ranks have compared

  int stages() const { return ranks * options.chunks; }
  bool has(const std::vector<int>& of) const { return std::find(of.begin(), of.end(), rank) != of.end(); }

  std::string name() const {
    if (options.chunks == 1) return fmt::format("stage {} of {}", rank, ranks);
    std::vector<int> own;
    for (int chunk = 0; chunk < options.chunks; ++chunk) own.push_back(chunk * ranks + rank);
    return fmt::format("rank {} of {} (stages {} of {})", rank, ranks, fmt::join(own, ", "), stages());
  }

  // --- tracing and cutting -----------------------------------------------------------------------------------------

  Signature& signature_of(const std::vector<TensorSpec>& inputs) {
    for (auto& known : signatures) {
      if (!known->fits(inputs)) continue;
      known->last_run = runs;
      return *known;
    }
    auto made = std::make_unique<Signature>();
    std::unique_ptr<Graph> graph;
    static_cast<MicroBatchTrace&>(*made) =
        trace_micro_batch(forward, inputs, options.trains ? &weight : nullptr, graph);
    made->last_run = runs;
    cut(*graph, *made);
    signatures.push_back(std::move(made));
    return *signatures.back();
  }

  // Shapes that no longer come must not fill the memory.
  void drop_unused() {
    std::erase_if(signatures, [&](const auto& one) { return one->last_run + runtime::kDropAfter < runs; });
  }

  void cut(Graph& graph, Signature& made) {
    const std::shared_ptr<const ForwardStages> like = where ? where : options.cut_like;
    const auto forward_stages =
        like
            ? std::make_shared<const ForwardStages>(graph, *like)
            : std::make_shared<const ForwardStages>(
                  graph, CutOptions{.stages = stages(), .firsts = options.cut ? *options.cut : balanced_firsts(graph)});
    passes::run_before_cut(graph, StepContext::current().options);
    if (!where) gathered = passes::gathered_in(graph);
    CutStep step = cut_stages(graph, *forward_stages,
                              {.stages = stages(),
                               .rank = rank,
                               .ranks = ranks,
                               .splits_weights = options.schedule == ScheduleKind::zero_bubble,
                               .passes = passes::after_cut(StepContext::current().options)});
    for (int result : step.result_stages) made.result_ranks.push_back(result % ranks);
    made.reads_input.resize(made.inputs.size());
    for (int chunk = 0; chunk < options.chunks; ++chunk) {
      const int stage = chunk * ranks + rank;
      const StagePrograms& own = made.own.emplace_back(std::move(step.stages[static_cast<size_t>(stage)]));
      for (const ProgramGraph& program : own.step().writing)
        for (const LeafSource& source : program.leaves)
          if (source.leaf >= 0 && made.input_of_leaf[static_cast<size_t>(source.leaf)] >= 0)
            made.reads_input[static_cast<size_t>(made.input_of_leaf[static_cast<size_t>(source.leaf)])] = true;
    }
    if (!where)
      take_first_cut(step, forward_stages, made);
    else
      require_gradients_as_cut(made);
  }

  // Where nobody has said where to cut, all ranks of the job cut as the first one found best.
  const std::vector<std::string>& balanced_firsts(const Graph& traced) {
    if (stages() == 1) return balanced.emplace().firsts;
    balanced = balance_stages(traced, costs_of(traced, StepContext::current().options),
                              {.stages = stages(),
                               .chunks = options.chunks,
                               .schedule = options.schedule,
                               .micro_batches = static_cast<int>(options.micro_batches)});
    if (fleet::world_size() > 1) balanced = decode_cut(comm::exchange_texts(fleet::group(), encode(*balanced)).front());
    return balanced->firsts;
  }

  // Which parameters have gradients in the step.
  static std::map<const VariableState*, Variable> gradients_in(const Signature& made) {
    std::map<const VariableState*, Variable> parameters, found;  // by the gradient
    for (const Value& leaf : made.leaves)
      if (leaf.node->variable && leaf.node->variable->gradient)
        parameters[leaf.node->variable->gradient.get()] = Variable(leaf.node->variable);
    for (const Value& leaf : made.leaves)
      if (auto parameter = parameters.find(leaf.node->variable.get()); parameter != parameters.end())
        found.insert(*parameter);
    return found;
  }

  // Memory, updates and what ranks share were settled for the parameters that had gradients then.
  void require_gradients_as_cut(const Signature& made) const {
    const std::map<const VariableState*, Variable> now = gradients_in(made);
    std::map<std::string, const char*> changed;  // what has become of them, by name
    for (const auto* from : {&now, &gradients})
      for (const auto& [gradient, parameter] : *from)
        if (!(from == &now ? gradients : now).contains(gradient))
          changed.emplace(parameter.name(), from == &now ? "gets" : "gets no longer");
    if (changed.empty()) return;
    throw_error<GraphError>(
        "[pipeline] {} {} a gradient, unlike when the stages were cut; make a new Pipeline after parameters were "
        "frozen or freed",
        changed.begin()->first, changed.begin()->second);
  }

  // What is the same for every signature.
  void take_first_cut(const CutStep& step, std::shared_ptr<const ForwardStages> forward_stages, const Signature& made) {
    where = std::move(forward_stages);
    edges = step.edges;
    for (const auto& [leaf, of] : step.holders)
      if (const auto& variable = made.leaves[static_cast<size_t>(leaf)].node->variable)
        holders[variable.get()] = ranks_with(of);
    gradients = gradients_in(made);
    for (size_t leaf = 0; leaf < made.leaves.size(); ++leaf) {
      const auto& variable = made.leaves[leaf].node->variable;
      auto parameter = gradients.find(variable.get());
      if (!variable || parameter == gradients.end()) continue;
      const std::vector<int> of = holders.contains(variable.get()) ? holders.at(variable.get()) : std::vector<int>{};
      if (!has(of)) continue;
      written.push_back(parameter->second);
      if (of.size() > 1) shared.push_back({static_cast<int64_t>(leaf), Variable(variable), of});
    }
  }

  std::vector<int> ranks_with(const std::vector<int>& stages) const {
    std::set<int> with;
    for (int stage : stages) with.insert(stage % ranks);
    return {with.begin(), with.end()};
  }

  void each_plan(const std::function<void(Part, const runtime::Plan&)>& call) const {
    for (const auto& signature : signatures)
      for (const StagePrograms& stage : signature->own) stage.each_plan(call);
  }

  // --- what all ranks agree on -------------------------------------------------------------------------------------

  const Schedule& schedule_for(int micro_batches) {
    std::unique_ptr<Schedule>& made = schedules[micro_batches];
    if (made == nullptr) {
      made = std::make_unique<Schedule>(make_schedule({.kind = options.schedule,
                                                       .stages = ranks,
                                                       .micro_batches = micro_batches,
                                                       .chunks = options.chunks,
                                                       .edges = edges}));
      simulate(*made, std::vector<StageTimes>(static_cast<size_t>(ranks)));  // refuses one that does not work
    }
    return *made;
  }

  bool does(const Item& item) const {
    const bool is_message = item.work == Work::send || item.work == Work::receive;
    return options.trains || item.work == Work::forward || (is_message && item.phase == Phase::forward);
  }

  void agree(const Schedule& schedule, const std::vector<Signature*>& of) {
    if (ranks == 1) return;
    const std::string key =
        fmt::format("{} micro-batches of {}, the last of {}, passes {}", of.size(), to_string(of.front()->inputs[0]),
                    to_string(of.back()->inputs[0]), of.front()->surroundings.low);
    if (!agreed.insert(key).second) return;
    comm::Group& group = fleet::group(Axis::pipeline);
    comm::require_same(group, "pipeline",
                       {{"pipeline.schedule", name_of(options.schedule)},
                        {"pipeline.micro_batches", std::to_string(of.size())},
                        {"pipeline.chunks", std::to_string(options.chunks)},
                        {"pipeline.cut", fmt::format("{}", fmt::join(where->firsts(), ", "))}});
    std::vector<comm::ScheduledMessage> messages;
    for (const Item& item : schedule.ranks[static_cast<size_t>(rank)]) {
      if ((item.work != Work::send && item.work != Work::receive) || !does(item)) continue;
      const bool sends = item.work == Work::send;
      for (const MessageOf& message : of[static_cast<size_t>(item.micro_batch)]->stage_of(item).step().messages)
        if (message.phase == item.phase && (sends ? message.to : message.from) == item.other)
          messages.push_back(
              {.sent = sends,
               .peer = item.peer,
               .what = fmt::format("{} of micro-batch {}: value {} ({} {})",
                                   item.phase == Phase::forward ? "activations" : "gradients", item.micro_batch,
                                   message.tag, name_of(message.spec.dtype), to_string(message.spec.shape))});
    }
    comm::agree_on_messages(group, messages);
  }

  // --- running -----------------------------------------------------------------------------------------------------

  Receiver& receiver_from(int peer) {
    std::unique_ptr<Receiver>& receiver = receivers[peer];
    if (receiver == nullptr) receiver = std::make_unique<Receiver>(peer);
    return *receiver;
  }

  std::string place_in(size_t position, const Item& item) const {
    return fmt::format("[pipeline] {}, item {} of its schedule ({})", name(), position, to_string(item));
  }

  void post(size_t position, const Item& item, StagePrograms& stage, UnderWay& way) {
    const bool forward = item.phase == Phase::forward;
    (forward ? way.activations : way.gradients) = item.slot;
    std::vector<Receiver::Message> messages;
    std::vector<int> values;
    for (const MessageOf& one : stage.step().messages) {
      if (one.value < 0 || one.from != item.other || one.phase != item.phase) continue;
      messages.push_back({one.spec, one.tag, stage.slot(one.value, item.slot)});
      values.push_back(one.value);
    }
    if (messages.empty()) return;
    std::vector<Buffer> buffers;
    for (const Receiver::Message& message : messages) buffers.push_back(message.into);
    const std::shared_ptr<Completion> arrives = receiver_from(item.peer).post(
        std::move(messages), free[{item.phase, item.chunk, item.slot}], place_in(position, item));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<size_t>(values[i]);
      way.values[value] = Tensor::from_buffer(buffers[i], stage.value(value).spec);
      way.values[value].value().node->outputs[0].ready = arrives;
    }
  }

  // Slots that the micro-batch has had until now, whose last reader this is.
  void leave_slots(int chunk, const UnderWay& way, const std::shared_ptr<Completion>& done) {
    if (way.activations >= 0) free[{Phase::forward, chunk, way.activations}] = done;
    if (way.gradients >= 0) free[{Phase::backward, chunk, way.gradients}] = done;
  }

  void compute(const Item& item, Signature& signature, UnderWay& way, std::span<const Tensor> inputs, bool adds) {
    StagePrograms& stage = signature.stage_of(item);
    PlannedProgram& program = stage.program(part_of(item.work), adds, signature.leaves, ranks > 1);
    if (program.plan == nullptr) return;
    std::vector<Value> leaves;
    for (const LeafSource& source : program.sources) {
      if (source.value >= 0) {
        leaves.push_back(way.values[static_cast<size_t>(source.value)].value());
        continue;
      }
      const int argument = signature.input_of_leaf[static_cast<size_t>(source.leaf)];
      leaves.push_back(argument >= 0 ? inputs[static_cast<size_t>(argument)].value()
                                     : signature.leaves[static_cast<size_t>(source.leaf)]);
    }
    std::vector<Buffer> outputs;
    for (int value : program.outputs)
      outputs.push_back(stage.is_result(value) ? Buffer{} : stage.slot(value, item.slot));
    for (const Variable& variable : program.assigned) variable.keep_version_for_holders();
    runtime::SubmissionResult result = runtime::submit(program.plan, leaves, program.assigned, outputs);
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const auto value = static_cast<size_t>(program.outputs[i]);
      way.values[value] = Tensor::from_buffer(result.outputs[i], stage.value(value).spec);
      way.values[value].value().node->outputs[0].ready = result.completion;
    }
    leave_slots(item.chunk, way, result.completion);
  }

  // Where memory runs out, what the stage wants of it in all says how to cut otherwise.
  void compute_or_say_memory(const Item& item, Signature& signature, UnderWay& way, std::span<const Tensor> inputs,
                             bool adds) {
    try {
      compute(item, signature, way, inputs, adds);
    } catch (const DeviceError& error) {
      throw_error<DeviceError>("{} ({})", error.what(), memory_in_words(signature));
    } catch (const std::bad_alloc&) {
      throw_error<DeviceError>("out of memory on the host ({})", memory_in_words(signature));
    }
  }

  std::string memory_in_words(const Signature& signature) const {
    size_t held = 0, slots = 0, temporaries = 0;
    for (const auto& [variable, of] : holders)
      if (has(of)) held += variable->stored.bytes();
    for (const StagePrograms& stage : signature.own) {
      slots += stage.slot_bytes();
      stage.each_plan([&](Part, const runtime::Plan& plan) {
        for (const Device device : runtime::devices_of(plan))
          temporaries = std::max(temporaries, runtime::peak_bytes(plan, device));
      });
    }
    auto gigabytes = [](size_t bytes) { return static_cast<double>(bytes) / 1e9; };
    return fmt::format(
        "{} wants {:.3f} GB for weights and gradients, so far {:.3f} GB for values between its programs and {:.3f} GB "
        "for temporaries; give it less by pipeline.cut, or cut into more stages or micro-batches",
        name(), gigabytes(held), gigabytes(slots), gigabytes(temporaries));
  }

  // [micro-batches][inputs]; what this rank does not read is not copied.
  std::vector<std::vector<Tensor>> rows_of_inputs(std::span<const Tensor> batch, const std::vector<Signature*>& of) {
    std::vector<std::vector<Tensor>> all;
    int64_t begin = 0;
    for (const Signature* signature : of) {
      const int64_t count = signature->inputs[0].shape[0];
      std::vector<Tensor>& own = all.emplace_back();
      for (size_t i = 0; i < batch.size(); ++i) {
        if (!signature->reads_input[i])
          own.emplace_back();
        else
          own.push_back(of.size() == 1 ? batch[i] : slice(batch[i], 0, begin, begin + count));
      }
      begin += count;
    }
    commit();
    return all;
  }

  Results run(std::span<const Tensor> batch, std::span<const double> weights, const std::vector<int64_t>& counts,
              bool adds_up) {
    ++runs;
    drop_unused();
    std::vector<Signature*> of;
    for (int64_t count : counts) {
      std::vector<TensorSpec> specs;
      for (const Tensor& input : batch) specs.push_back(with_rows(input.spec(), count));
      of.push_back(&signature_of(specs));
    }
    const Schedule& schedule = schedule_for(static_cast<int>(of.size()));
    agree(schedule, of);
    RandomState& random = StepContext::current().random;
    const uint64_t first_step = random.step;
    const std::vector<std::vector<Tensor>> inputs = rows_of_inputs(batch, of);
    std::vector<std::vector<UnderWay>> ways(of.size());  // [micro-batches][chunks]
    for (size_t i = 0; i < of.size(); ++i)
      for (const StagePrograms& stage : of[i]->own)
        ways[i].push_back({.values = std::vector<Tensor>(stage.step().values.size())});
    Results results{.of = std::vector<std::vector<Tensor>>(of[0]->results.size()),
                    .specs = of[0]->results,
                    .ranks = of[0]->result_ranks,
                    .micro_batches = static_cast<int64_t>(of.size())};
    const std::vector<Item>& items = schedule.ranks[static_cast<size_t>(rank)];
    for (size_t position = 0; position < items.size(); ++position) {
      const Item& item = items[position];
      if (item.micro_batch < 0 || !does(item)) continue;
      const auto i = static_cast<size_t>(item.micro_batch);
      UnderWay& way = ways[i][static_cast<size_t>(item.chunk)];
      if (item.work == Work::receive) post(position, item, of[i]->stage_of(item), way);
      if (!is_part(item.work)) continue;
      random.step = first_step + i;
      weight.set(weights.empty() ? 1 : weights[i]);
      saying_where([&] { return place_in(position, item); },
                   [&] { compute_or_say_memory(item, *of[i], way, inputs[i], adds_up || i > 0); });
      if (is_last(item)) take_results(of[i]->stage_of(item).step(), way, results);
    }
    random.step = first_step + of.size();
    for (const Variable& parameter : written) parameter.state().gradient_is_clear = !options.trains;
    return results;
  }

  PlannedPrograms plan(std::span<const TensorSpec> batch, const std::vector<int64_t>& counts) {
    std::vector<Signature*> of;
    for (int64_t count : counts) {
      std::vector<TensorSpec> specs;
      for (const TensorSpec& spec : batch) specs.push_back(with_rows(spec, count));
      of.push_back(&signature_of(specs));
    }
    PlannedPrograms planned;
    std::set<const runtime::Plan*> known;
    std::set<std::tuple<const StagePrograms*, int, int>> slots;  // stage, value, slot
    for (const Item& item : schedule_for(static_cast<int>(of.size())).ranks[static_cast<size_t>(rank)]) {
      if (item.micro_batch < 0 || !does(item)) continue;
      Signature& signature = *of[static_cast<size_t>(item.micro_batch)];
      StagePrograms& stage = signature.stage_of(item);
      if (item.work == Work::receive)
        for (const MessageOf& one : stage.step().messages)
          if (one.value >= 0 && one.from == item.other && one.phase == item.phase)
            slots.emplace(&stage, one.value, item.slot);
      if (!is_part(item.work)) continue;
      const PlannedProgram& program =
          stage.program(part_of(item.work), item.micro_batch > 0, signature.leaves, ranks > 1);
      for (int value : program.outputs)
        if (!stage.is_result(value)) slots.emplace(&stage, value, item.slot);
      if (program.plan != nullptr && known.insert(program.plan.get()).second)
        planned.programs.push_back(
            {fmt::format("{} of stage {}", "FBW"[static_cast<size_t>(part_of(item.work))], item.chunk * ranks + rank),
             program.plan});
    }
    for (const auto& [stage, value, slot] : slots) planned.slot_bytes += stage->bytes_of_slot(value);
    return planned;
  }

  bool is_last(const Item& item) const {
    if (!options.trains) return true;
    return item.work == (options.schedule == ScheduleKind::zero_bubble ? Work::weights : Work::backward);
  }

  // Nothing of the micro-batch is needed any more but its results.
  static void take_results(const StageStep& step, UnderWay& way, Results& results) {
    for (size_t k = 0; k < step.results.size(); ++k)
      if (const int value = step.results[k]; value >= 0)
        results.of[k].push_back(way.values[static_cast<size_t>(value)]);
    way.values.clear();
  }
};

StageRunner::StageRunner(Forward forward, RunnerOptions options)
    : state_(std::make_unique<State>(State{.forward = std::move(forward),
                                           .options = std::move(options),
                                           .rank = fleet::mesh().place(Axis::pipeline),
                                           .ranks = fleet::mesh().size(Axis::pipeline)})) {
  if (state_->options.micro_batches < 1)
    throw_error<ConfigError>("[pipeline] micro_batches is {}, expected at least 1", state_->options.micro_batches);
  make_schedule({.kind = state_->options.schedule, .stages = state_->ranks, .chunks = state_->options.chunks});
}

StageRunner::~StageRunner() = default;

void StageRunner::prepare(std::span<const TensorSpec> batch) {
  if (state_->where) return;
  BONFIRE_CHECK(!batch.empty());
  const int64_t rows = batch[0].shape.rank() == 0 ? 0 : batch[0].shape[0];
  const int64_t parts = state_->options.trains ? state_->options.micro_batches : 1;
  if (rows < parts)
    throw_error<ConfigError>("[pipeline] micro_batches is {}, and a batch has {} rows; use at most {}", parts, rows,
                             std::max<int64_t>(rows, 1));
  state_->rows = (rows + parts - 1) / parts;
  std::vector<TensorSpec> specs;
  for (const TensorSpec& spec : batch) specs.push_back(with_rows(spec, state_->rows));
  state_->signature_of(specs);
}

const std::shared_ptr<const ForwardStages>& StageRunner::cut() const { return state_->where; }

const std::optional<BalancedCut>& StageRunner::balanced() const { return state_->balanced; }

std::vector<int> StageRunner::ranks_of(const Variable& variable) const {
  auto found = state_->holders.find(&variable.state());
  return found == state_->holders.end() ? std::vector<int>{} : found->second;
}

const std::vector<SharedGradient>& StageRunner::shared_gradients() const { return state_->shared; }

const std::vector<passes::Gathered>& StageRunner::gathered() const { return state_->gathered; }

std::string StageRunner::name() const { return state_->name(); }

std::vector<int64_t> StageRunner::rows_of(int64_t batch) const {
  if (!state_->options.trains) return {batch};
  std::vector<int64_t> counts;
  for (int64_t left = batch; left > 0; left -= counts.back()) counts.push_back(std::min(left, state_->rows));
  return counts;
}

StageRunner::Results StageRunner::run(std::span<const Tensor> batch, std::span<const double> weights, bool adds_up) {
  std::vector<TensorSpec> specs;
  for (const Tensor& input : batch) specs.push_back(input.spec());
  prepare(specs);
  const std::vector<int64_t> counts = rows_of(specs[0].shape[0]);
  BONFIRE_CHECK(weights.empty() || weights.size() == counts.size());
  return state_->run(batch, weights, counts, adds_up);
}

PlannedPrograms StageRunner::plan(std::span<const TensorSpec> batch) {
  prepare(batch);
  return state_->plan(batch, rows_of(batch[0].shape[0]));
}

Tensor StageRunner::receive(const TensorSpec& spec, int from, int64_t tag, const std::string& what) {
  const Buffer buffer{std::make_shared<Storage>(spec.device, std::max<size_t>(1, spec.bytes()))};
  Tensor result = Tensor::from_buffer(buffer, spec);
  result.value().node->outputs[0].ready = state_->receiver_from(from).post({{spec, tag, buffer}}, nullptr, what);
  return result;
}

void StageRunner::start_profile() {
  state_->each_plan([](Part, const runtime::Plan& plan) { runtime::start_profile(plan); });
}

StageTimes StageRunner::stop_profile() {
  std::array<std::vector<double>, kParts> seconds;
  state_->each_plan([&](Part part, const runtime::Plan& plan) {
    for (double one : runtime::submission_seconds(plan)) seconds[static_cast<size_t>(part)].push_back(one);
    runtime::stop_profile(plan);
  });
  auto median = [&](Part part) {
    std::vector<double>& all = seconds[static_cast<size_t>(part)];
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[all.size() / 2];
  };
  return {.forward = median(Part::forward), .backward = median(Part::backward), .weights = median(Part::weights)};
}

size_t StageRunner::slot_bytes() const {
  size_t bytes = 0;
  for (const auto& signature : state_->signatures)
    for (const StagePrograms& stage : signature->own) bytes += stage.slot_bytes();
  return bytes;
}

}  // namespace bonfire::pipeline
