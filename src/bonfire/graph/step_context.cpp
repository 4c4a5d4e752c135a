#include "bonfire/graph/step_context.h"

#include <atomic>
#include <bit>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/mixed_precision.h"

namespace bonfire {

namespace {
std::atomic<uint64_t> first_seed{RandomState{}.seed};  // of threads that have not drawn yet
std::atomic<uint64_t> contexts{0};                     // so far
}  // namespace

void StepOptions::mix_into(base::Hash128& hash) const {
  hash.mix(static_cast<uint64_t>(use_amp) | (static_cast<uint64_t>(amp_dtype) << 8) |
           (static_cast<uint64_t>(fuse_bn_act_ops) << 1) | (static_cast<uint64_t>(fuse_elewise_add_act_ops) << 2) |
           (static_cast<uint64_t>(fuse_elementwise) << 3) | (static_cast<uint64_t>(rebuild_cheap_values) << 4) |
           (static_cast<uint64_t>(fuse_all_reduce_ops) << 5) | (static_cast<uint64_t>(stand_ins) << 6) |
           (static_cast<uint64_t>(fast_math) << 7));
  hash.mix(static_cast<uint64_t>(all_reduce_bytes));
  hash.mix(static_cast<uint64_t>(all_reduce_layers));
  hash.mix(static_cast<uint64_t>(communicators));
  hash.mix(static_cast<uint64_t>(sync_batch_norm));
  hash.mix(recompute.size());
  for (const std::string& module : recompute) hash.mix(std::string_view(module));
  hash.mix(static_cast<uint64_t>(memory_budget.kind) | static_cast<uint64_t>(memory_budget.sharers) << 8);
  hash.mix(std::bit_cast<uint64_t>(memory_budget.amount));
  for (const auto& [device, bytes] : memory_budget.held) hash.mix(bytes);
}

StepContext::StepContext() : number(++contexts), random{.seed = first_seed.load()} {}
StepContext::~StepContext() = default;

constinit thread_local StepContext* StepContext::here = nullptr;

StepContext& StepContext::first_use() {
  thread_local StepContext context;
  here = &context;
  return context;
}

void tell(const FailureCalls& calls, const std::string& why) {
  if (calls == nullptr) return;
  for (const auto& hook : *calls) hook.call(why);
}

bool all_say(const Hooks<bool()>& hooks) {
  bool all = true;
  const auto list = hooks.calls();
  for (const auto& hook : *list) all = hook.call() && all;
  return all;
}

void manual_seed(uint64_t seed) {
  if (Trace::current().compiling)
    throw_error<GraphError>("[compile] manual_seed() inside a step would count once only; call it before the step");
  commit();  // what was asked for before draws from the seed before
  first_seed = seed;
  RandomState& random = StepContext::current().random;
  random = {.seed = seed, .rank = random.rank, .world = random.world};
}

void use_mixed_precision(bool on) { StepContext::current().options.use_amp = on; }
bool uses_mixed_precision() { return StepContext::current().options.use_amp; }

}  // namespace bonfire
