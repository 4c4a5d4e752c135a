#include "bonfire/base/error.h"
#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

// One in each file of this folder.
extern const StrategyKind threads, pass_options, memory_release, fetches, local_sgd, accumulation, reduction,
    sync_batch_norm, recompute, sharding, not_built;

std::span<const StrategyKind* const> strategy_kinds() {
  static const StrategyKind* const kinds[] = {&not_built, &threads,         &pass_options, &memory_release,
                                              &fetches,   &accumulation,    &local_sgd,    &sharding,
                                              &reduction, &sync_batch_norm, &recompute};
  return kinds;
}

std::string print(bool value) { return value ? "true" : "false"; }
std::string print(int64_t value) { return std::to_string(value); }

void require_at_least_one(const char* option, int64_t value) {
  if (value < 1) throw_error<ConfigError>("[strategy] {} is {}, expected at least 1", option, value);
}

void require_effect(const char* option, bool given, bool counts, const char* needs) {
  if (given && !counts)
    throw_error<ConfigError>("[strategy] {0} has no effect without {1}; add {1}, or leave {0} out", option, needs);
}

}  // namespace bonfire::fleet
