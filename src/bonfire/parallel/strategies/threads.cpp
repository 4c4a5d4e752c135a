// num_threads and cpu_threads.
#include "bonfire/backend/cpu/device/threads.h"

#include <set>

#include "bonfire/base/error.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

namespace {

void check_threads(const DistributedStrategy& strategy) {
  require_at_least_one("num_threads", strategy.num_threads);
  require_at_least_one("cpu_threads", strategy.cpu_threads.value_or(1));
}

void prepare_threads(const DistributedStrategy& strategy) {
  if (strategy.cpu_threads) cpu::set_cpu_threads(static_cast<int>(*strategy.cpu_threads));
  if (strategy.num_threads.chosen) cpu::set_ops_in_flight(static_cast<int>(strategy.num_threads));
}

void apply_threads(const Applied& to, std::unique_ptr<StrategyPart>&) {
  const DistributedStrategy& strategy = to.strategy;
  prepare_threads(strategy);
  if (!strategy.num_threads.chosen) return;
  std::set<Device> devices;
  for (const Variable& parameter : to.optimizer.parameters()) devices.insert(parameter.device());
  for (Device device : devices) {
    if (device.type != DeviceType::cpu || queue_of(device).steps_in_flight() == strategy.num_threads) continue;
    throw_error<ConfigError>(
        "[fleet] num_threads is {}, but {} is in use already, with {}; call distributed_optimizer before anything is "
        "computed, or set BONFIRE_OPS_IN_FLIGHT",
        strategy.num_threads.value, to_string(device), queue_of(device).steps_in_flight());
  }
}

}  // namespace

extern const StrategyKind threads;
const StrategyKind threads{
    .name = "threads", .check = check_threads, .prepare = prepare_threads, .apply = apply_threads};

}  // namespace bonfire::fleet
