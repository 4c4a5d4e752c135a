// use_recompute: the pass of that name computes modules again in the backward pass. memory_budget, or use_recompute
// without names: planning chooses what is computed again (runtime/memory_budget.h).
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/glob.h"
#include "bonfire/base/nearest.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"
#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

namespace {

struct Recomputed final : StrategyPart {
  Recomputed(StepContext& context, const std::vector<std::string>& modules, const MemoryBudget& budget)
      : context(context),
        modules_before(std::exchange(context.options.recompute, modules)),
        budget_before(std::exchange(context.options.memory_budget, budget)) {}
  Recomputed(const Recomputed&) = delete;
  Recomputed& operator=(const Recomputed&) = delete;
  ~Recomputed() override {
    context.options.recompute = modules_before;
    context.options.memory_budget = budget_before;
  }
  StepContext& context;
  const std::vector<std::string> modules_before;
  const MemoryBudget budget_before;
};

// "6GB", "0.8", "auto"; nothing: it is no such text.
std::optional<MemoryBudget> parse_budget(std::string_view text) {
  using Kind = MemoryBudget::Kind;
  if (text == "off") return MemoryBudget{};
  if (text == "auto") return MemoryBudget{.kind = Kind::automatic};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number > 0)) return {};
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (unit.empty())
    return number <= 1 ? std::optional(MemoryBudget{.kind = Kind::share, .amount = number}) : std::nullopt;
  static const std::map<std::string_view, double> kUnits = {{"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                                                            {"TB", 1e12},    {"KiB", 1024.0}, {"MiB", 1048576.0},
                                                            {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const auto found = kUnits.find(unit);
  constexpr double kMost = 1e18;  // bytes: beyond any device, and still a whole number of 64 bits
  if (found == kUnits.end() || number * found->second > kMost) return {};
  return MemoryBudget{.kind = Kind::bytes, .amount = number * found->second};
}

MemoryBudget budget_of(const DistributedStrategy& s) {
  const std::optional<MemoryBudget> budget = parse_budget(s.memory_budget);
  if (!budget)
    throw_error<ConfigError>(
        "[strategy] memory_budget is '{}', expected bytes with their unit (6GB, 800MB, 5.5GiB), a share of the "
        "device's "
        "memory (0.8), auto or off",
        s.memory_budget);
  const bool is_left_to_us = s.use_recompute && !s.recompute_segments && !*budget;
  return is_left_to_us ? MemoryBudget{.kind = MemoryBudget::Kind::automatic} : *budget;
}

void check_recompute(const DistributedStrategy& s) {
  require_effect("recompute_segments", s.recompute_segments.has_value(), s.use_recompute, "use_recompute");
  if (s.recompute_segments && s.recompute_segments->empty())
    throw_error<ConfigError>("[strategy] recompute_segments is empty; name modules, or leave use_recompute out");
  budget_of(s);
}

// Parameters, gradients and states of the optimizer, device by device.
std::vector<std::pair<Device, uint64_t>> held_by(const optim::Optimizer& optimizer) {
  std::map<Device, uint64_t> bytes;
  const auto add = [&](const Variable& variable) { bytes[variable.device()] += variable.stored_spec().bytes(); };
  for (const Variable& parameter : optimizer.parameters()) {
    add(parameter);
    add(parameter.grad_variable());
    for (const auto& [name, state] : optimizer.state_of(parameter)) add(state);
  }
  return {bytes.begin(), bytes.end()};
}

int processes_on_host(const Job& job) {
  if (job.rendezvous.store != nullptr) return job.rendezvous.environment.local_world;
  return job.group ? job.group->size() : 1;  // threads
}

// By their parameters' names, of all modules that have some.
std::vector<std::string> modules_of(const optim::Optimizer& optimizer) {
  std::set<std::string> modules;
  for (const Variable& parameter : optimizer.parameters())
    for (size_t end = parameter.name().find('.'); end != std::string::npos; end = parameter.name().find('.', end + 1))
      modules.insert(parameter.name().substr(0, end));
  return {modules.begin(), modules.end()};
}

// Of a program whose parameters have no names nothing can be said.
void require_modules(const std::vector<std::string>& named, const std::vector<std::string>& there) {
  constexpr size_t kListed = 40;
  if (there.empty()) return;
  for (const std::string& name : named) {
    if (std::ranges::any_of(there, [&](const std::string& one) { return base::matches(name, one); })) continue;
    const std::vector<std::string> listed(there.begin(), there.begin() + std::min(kListed, there.size()));
    throw_error<ConfigError>(
        "[strategy] recompute_segments: '{}' matches no module that has parameters; the nearest is '{}'; there are: "
        "{}{}",
        name, base::nearest(name, there), fmt::join(listed, ", "),
        there.size() > kListed ? fmt::format(" and {} more", there.size() - kListed) : "");
  }
}

void apply_recompute(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  MemoryBudget budget = budget_of(to.strategy);
  if (!to.strategy.use_recompute.chosen && !budget) return;
  if (budget && mesh().size(Axis::pipeline) > 1)
    throw_error<ConfigError>(
        "[strategy] memory_budget is not available yet for the stages of a pipeline, and this job is {}; name modules "
        "in recompute_segments, or take a schedule that keeps fewer micro-batches (1f1b)",
        to_string(mesh()));
  const bool by_name = to.strategy.use_recompute && to.strategy.recompute_segments;
  if (by_name) require_modules(*to.strategy.recompute_segments, modules_of(to.optimizer));
  kept.reset();
  if (!by_name && !budget) return;
  budget.sharers = processes_on_host(to.job);
  if (budget) budget.held = held_by(to.optimizer);
  kept = std::make_unique<Recomputed>(to.context,
                                      by_name ? *to.strategy.recompute_segments : std::vector<std::string>(), budget);
}

void compare_recompute(const Applied& to, comm::Settings& settings) {
  settings.emplace_back("recompute_segments", fmt::format("[{}]", fmt::join(to.context.options.recompute, ", ")));
  settings.emplace_back("memory_budget", to.strategy.memory_budget);
}

}  // namespace

extern const StrategyKind recompute;
const StrategyKind recompute{
    .name = "recompute", .check = check_recompute, .apply = apply_recompute, .compare = compare_recompute};

}  // namespace bonfire::fleet
