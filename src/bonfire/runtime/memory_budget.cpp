#include "bonfire/runtime/memory_budget.h"

#include <algorithm>
#include <map>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/plan_draft.h"
#include "bonfire/runtime/profile.h"
#include "bonfire/runtime/recompute_choice.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::runtime {

namespace {

size_t limit_on(Device device, const MemoryBudget& budget) {
  if (budget.kind == MemoryBudget::Kind::bytes) return static_cast<size_t>(budget.amount);
  constexpr double kMostOfIt = 0.9;  // the program and what it does besides need some
  double there = static_cast<double>(queue_of(device).memory_bytes());
  if (device.type == DeviceType::cpu) there /= budget.sharers;
  return static_cast<size_t>(there * (budget.kind == MemoryBudget::Kind::share ? budget.amount : kMostOfIt));
}

// What of a step is there whatever is computed again: variables, and batches and results of the steps under way.
size_t fixed_bytes(const PlanDraft& draft, Device device, const MemoryBudget& budget) {
  constexpr size_t kStepsUnderWay = 3;
  size_t variables = 0, passing = 0;
  for (const GraphNode& node : draft.graph().nodes())
    if (node.is_input() && node.device() == device)
      (node.leaf == LeafKind::variable ? variables : passing) += node.outputs[0].bytes();
  for (const auto& list : {draft.plan().outputs, draft.plan().crossings})
    for (const TensorSpec& spec : list)
      if (spec.device == device) passing += spec.bytes();
  size_t held = 0;
  for (const auto& [where, bytes] : budget.held) held += where == device ? bytes : 0;
  return std::max(variables, held) + kStepsUnderWay * passing;
}

// The part of a draft that a device runs, as the choice sees it.
class DeviceModel {
 public:
  DeviceModel(const PlanDraft& draft, Device device) : draft_(draft), device_(device) {
    model_.in_flight = queue_of(device).steps_in_flight();
    for (const GraphNode* node : draft.order().nodes)
      if (node->device() == device && !choice_of(*node).alias) add(*node);
    keep_for_lines();
  }

  const StepModel& model() const { return model_; }

  void time_nodes() {
    std::vector<TimedNode> timed;
    for (const GraphNode* node : nodes_)
      if (!choice_of(*node).candidate.line) timed.push_back({node, {choice_of(*node).candidate}});
    if (timing_is_shared()) share_out_timing(timed);
    for (size_t i = 0; i < nodes_.size(); ++i) model_.nodes[i].seconds = seconds_of(*nodes_[i]);
    save_tuning();
  }

  double seconds() const {
    double all = 0;
    for (const ModelNode& node : model_.nodes) all += node.seconds;
    return all;
  }

  void add_to(std::vector<bool>& again, const Repeated& repeated) const {
    for (size_t i = 0; i < repeated.size(); ++i)
      if (repeated[i]) again[draft_.place_of(*nodes_[i])] = true;
  }

 private:
  const Choice& choice_of(const GraphNode& node) const { return draft_.choices().of_node.at(&node); }

  static void add_once(std::vector<int>& list, int value) {
    if (std::ranges::find(list, value) == list.end()) list.push_back(value);
  }

  int value_of(const GraphValue& value) {
    const int cell = draft_.places().cell_of(value);
    const auto [known, is_new] = values_.try_emplace(cell, static_cast<int>(model_.bytes.size()));
    if (is_new) {
      constexpr size_t kAligned = 256;
      const bool temporary =
          draft_.places().location_of(value).source == Source::arena && value.node->device() == device_;
      model_.bytes.push_back(temporary ? (draft_.places().bytes_of(value) + kAligned - 1) / kAligned * kAligned : 0);
    }
    return known->second;
  }

  void add(const GraphNode& node) {
    const Choice& choice = choice_of(node);
    ModelNode one{.reads = {}, .writes = {}, .workspace = choice.candidate.workspace_bytes};
    for (const GraphValue& input : node.inputs) add_once(one.reads, value_of(input));
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i)
      add_once(one.writes, value_of({const_cast<GraphNode*>(&node), i}));
    for (const auto& [output, input] : choice.candidate.in_place)
      one.in_place.emplace_back(value_of({const_cast<GraphNode*>(&node), output}),
                                value_of(node.inputs[static_cast<size_t>(input)]));
    one.is_late = node.phase != Phase::forward || node.recomputed;
    one.may_repeat =
        !one.is_late && !choice.candidate.line && !node.op->has(Trait::collective | Trait::stateful | Trait::constant);
    nodes_.push_back(&node);
    model_.nodes.push_back(std::move(one));
  }

  // What a step in a line reads stays until somebody reads its result, as memory planning has it.
  void keep_for_lines() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!choice_of(*nodes_[i]).candidate.line) continue;
      size_t reader = i + 1;
      const auto reads = [&](size_t later) {
        return std::ranges::any_of(model_.nodes[later].reads, [&](int value) {
          return std::ranges::find(model_.nodes[i].writes, value) != model_.nodes[i].writes.end();
        });
      };
      while (reader + 1 < nodes_.size() && !reads(reader)) ++reader;
      if (reader >= nodes_.size()) continue;
      for (int value : model_.nodes[i].reads) add_once(model_.nodes[reader].reads, value);
    }
  }

  double seconds_of(const GraphNode& node) const {
    const Choice& choice = choice_of(node);
    if (choice.candidate.line) return 0;
    if (const std::vector<double> known = candidate_times(node, {choice.candidate}); !known.empty())
      return 1e-9 * known[0];
    constexpr double kSecondsOfByte = 1e-10, kSecondsOfOperation = 2e-11;  // where nothing may be measured
    const PlanNote note = note_of(node, choice.candidate);
    return kSecondsOfByte * note.bytes + kSecondsOfOperation * note.operations;
  }

  const PlanDraft& draft_;
  const Device device_;
  StepModel model_;
  std::vector<const GraphNode*> nodes_;
  std::map<int, int> values_;  // by cell
};

// A device on which the step needs more than it may.
struct TightDevice {
  Device device;
  DeviceModel of_step;
  size_t fixed = 0, limit = 0;
  size_t arena = 0;        // without anything again
  double packing = 1;      // how much more than its model the arena takes
  Repeated repeated = {};  // what was chosen last
  double seconds = 0;
  bool is_met = false;

  size_t for_temporaries() const { return limit > fixed ? limit - fixed : 0; }
};

class WithinBudget {
 public:
  WithinBudget(const Graph& graph, const GivenLayouts& given, const passes::Options& options)
      : graph_(graph), given_(given), options_(options), budget_(options.memory_budget) {
    options_.memory_budget = {};
  }

  std::unique_ptr<Plan> run() {
    auto draft = std::make_unique<PlanDraft>(graph_.copy(), given_, options_);
    std::vector<TightDevice> tight = tight_devices(*draft);
    if (tight.empty()) return draft->finish();
    for (TightDevice& one : tight) one.of_step.time_nodes();
    constexpr int kTries = 6;
    std::unique_ptr<PlanDraft> best;
    for (int i = 0; i < kTries; ++i) {
      std::vector<bool> again(draft->place_count());
      for (TightDevice& one : tight) {
        if (!one.is_met) choose(one);
        one.of_step.add_to(again, one.repeated);
      }
      best = std::make_unique<PlanDraft>(graph_.copy(), given_, options_, again);
      for (TightDevice& one : tight) compare(one, *best);
      if (std::ranges::all_of(tight, &TightDevice::is_met)) break;
    }
    for (const TightDevice& one : tight)
      if (!one.is_met && budget_.kind != MemoryBudget::Kind::automatic)
        fail(one, one.fixed + best->places().arena_bytes(one.device));
    std::vector<BudgetOutcome> outcomes;
    for (const TightDevice& one : tight) outcomes.push_back(outcome_of(one, *best));
    std::unique_ptr<Plan> plan = best->finish();
    plan->budget = std::move(outcomes);
    return plan;
  }

 private:
  std::vector<TightDevice> tight_devices(const PlanDraft& draft) {
    std::vector<TightDevice> tight;
    const std::vector<Device>& of_programs = draft.order().program_devices;
    for (Device device : std::set<Device>(of_programs.begin(), of_programs.end())) {
      const size_t fixed = fixed_bytes(draft, device, budget_), limit = limit_on(device, budget_);
      const size_t arena = draft.places().arena_bytes(device);
      if (fixed + arena <= limit) continue;
      TightDevice one{.device = device, .of_step = {draft, device}, .fixed = fixed, .limit = limit, .arena = arena};
      const size_t peak = peak_of(one.of_step.model(), Repeated(one.of_step.model().nodes.size()));
      one.packing = std::max(1.0, static_cast<double>(arena) / static_cast<double>(std::max<size_t>(peak, 1)));
      tight.push_back(std::move(one));
    }
    return tight;
  }

  void choose(TightDevice& one) const {
    const auto most = static_cast<size_t>(static_cast<double>(one.for_temporaries()) / one.packing);
    if (std::optional<Repeated> chosen = choose_repeated(one.of_step.model(), most)) {
      one.repeated = std::move(*chosen);
      return;
    }
    const size_t fewest = fewest_bytes(one.of_step.model());
    const auto least = one.fixed + static_cast<size_t>(static_cast<double>(fewest) * one.packing);
    if (budget_.kind != MemoryBudget::Kind::automatic) fail(one, least);
    base::log_warning(
        "[memory] a step needs {} of {}, whatever is computed again, and {} are there for it; a smaller batch_size, "
        "strategy.use_amp or strategy.accumulate_steps needs less",
        amount(least), to_string(one.device), amount(one.limit));
    one.repeated = choose_repeated(one.of_step.model(), fewest).value_or(one.repeated);
    one.is_met = true;
  }

  // Where memory planning did not pack as well as before, the model has to leave that much room.
  static void compare(TightDevice& one, const PlanDraft& draft) {
    const size_t arena = draft.places().arena_bytes(one.device);
    one.is_met = one.is_met || arena <= one.for_temporaries();
    if (one.is_met) return;
    constexpr double kRoom = 1.005;
    const size_t peak = peak_of(one.of_step.model(), one.repeated);
    one.packing = std::max(one.packing * kRoom, kRoom * static_cast<double>(arena) / static_cast<double>(peak));
  }

  BudgetOutcome outcome_of(const TightDevice& one, const PlanDraft& draft) const {
    return {.device = one.device,
            .budget = one.limit,
            .before = one.fixed + one.arena,
            .after = one.fixed + draft.places().arena_bytes(one.device),
            .seconds = one.of_step.seconds(),
            .seconds_again = seconds_of_repeats(one.of_step.model(), one.repeated),
            .nodes_again = static_cast<int>(std::ranges::count(one.repeated, true))};
  }

  [[noreturn]] static void fail(const TightDevice& one, size_t least) {
    throw_error<ConfigError>(
        "[memory] memory_budget is {} on {}, and the step needs at least {} ({} of that for parameters, gradients, "
        "optimizer states and batches) where everything that can be is computed again; without a budget it needs {}. A "
        "smaller batch_size or strategy.use_amp needs less",
        amount(one.limit), to_string(one.device), amount(least), amount(one.fixed), amount(one.fixed + one.arena));
  }

  const Graph& graph_;
  const GivenLayouts& given_;
  passes::Options options_;
  const MemoryBudget budget_;
};

}  // namespace

std::unique_ptr<Plan> plan_within_budget(const Graph& graph, const GivenLayouts& given,
                                         const passes::Options& options) {
  return WithinBudget(graph, given, options).run();
}

}  // namespace bonfire::runtime
