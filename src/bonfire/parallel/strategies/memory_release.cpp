// num_iteration_per_drop_scope.
#include "bonfire/parallel/strategies/kind.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::fleet {

namespace {

void check_memory_release(const DistributedStrategy& strategy) {
  require_at_least_one("num_iteration_per_drop_scope", strategy.num_iteration_per_drop_scope);
}

void apply_memory_release(const Applied& to, std::unique_ptr<StrategyPart>&) {
  if (to.strategy.num_iteration_per_drop_scope.chosen)
    runtime::set_release_frequency(to.strategy.num_iteration_per_drop_scope);
}

}  // namespace

extern const StrategyKind memory_release;
const StrategyKind memory_release{
    .name = "memory_release", .check = check_memory_release, .apply = apply_memory_release};

}  // namespace bonfire::fleet
