// use_recompute: the pass of that name computes modules again in the backward pass.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/glob.h"
#include "bonfire/base/nearest.h"
#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

namespace {

struct RecomputedModules final : StrategyPart {
  RecomputedModules(StepContext& context, const std::vector<std::string>& modules)
      : context(context), before(std::exchange(context.options.recompute, modules)) {}
  RecomputedModules(const RecomputedModules&) = delete;
  RecomputedModules& operator=(const RecomputedModules&) = delete;
  ~RecomputedModules() override { context.options.recompute = before; }
  StepContext& context;
  const std::vector<std::string> before;
};

void check_recompute(const DistributedStrategy& s) {
  require_effect("recompute_segments", s.recompute_segments.has_value(), s.use_recompute, "use_recompute");
  if (s.recompute_segments && s.recompute_segments->empty())
    throw_error<ConfigError>("[strategy] recompute_segments is empty; name modules, or leave use_recompute out");
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
  if (!to.strategy.use_recompute.chosen) return;
  if (to.strategy.use_recompute) require_modules(*to.strategy.recompute_segments, modules_of(to.optimizer));
  kept.reset();
  if (to.strategy.use_recompute)
    kept = std::make_unique<RecomputedModules>(to.context, *to.strategy.recompute_segments);
}

void compare_recompute(const Applied& to, comm::Settings& settings) {
  settings.emplace_back("recompute_segments", fmt::format("[{}]", fmt::join(to.context.options.recompute, ", ")));
}

}  // namespace

extern const StrategyKind recompute;
const StrategyKind recompute{
    .name = "recompute", .check = check_recompute, .apply = apply_recompute, .compare = compare_recompute};

}  // namespace bonfire::fleet
