// num_iteration_per_drop_scope.
#include "bonfire/parallel/strategies/kind.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::fleet {

namespace {

void check_memory_release(const DistributedStrategy& strategy) {
  require_at_least_one("num_iteration_per_drop_scope", strategy.num_iteration_per_drop_scope);
}

class MemoryRelease final : public StrategyPart {
 public:
  explicit MemoryRelease(int64_t submissions) : before_(runtime::release_frequency()), made_(submissions) {
    runtime::set_release_frequency(submissions);
  }
  MemoryRelease(const MemoryRelease&) = delete;
  MemoryRelease& operator=(const MemoryRelease&) = delete;
  ~MemoryRelease() override {  // puts it back, unless the program has changed it since
    if (runtime::release_frequency() == made_) runtime::set_release_frequency(before_);
  }

 private:
  int64_t before_, made_;
};

void apply_memory_release(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  if (!to.strategy.num_iteration_per_drop_scope.chosen) return;
  kept.reset();
  kept = std::make_unique<MemoryRelease>(to.strategy.num_iteration_per_drop_scope);
}

}  // namespace

extern const StrategyKind memory_release;
const StrategyKind memory_release{
    .name = "memory_release", .check = check_memory_release, .apply = apply_memory_release};

}  // namespace bonfire::fleet
