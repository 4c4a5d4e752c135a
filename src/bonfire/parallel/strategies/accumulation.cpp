#include "bonfire/parallel/strategies/accumulation.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/tensor.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/parallel/job.h"

namespace bonfire::fleet {

Accumulation::Accumulation(const optim::Optimizer& optimizer, int64_t batches)
    : parameters_(optimizer.parameters()), batches_(batches) {
  StepContext& context = StepContext::current();
  equal_weights_ = context.before_backward.add(
      [part = 1.0 / static_cast<double>(batches)](const Tensor& seed) { return seed * part; });
  auto is_due = [this] { return added_ + 1 == batches_; };
  hooks_.push_back(context.update_is_due.add(is_due));
  hooks_.push_back(context.reduces_gradients.add(is_due));
  hooks_.push_back(context.gradients_are_done.add([this] { return added_ == 0; }));
  hooks_.push_back(context.after_step.add([this](const optim::Optimizer& one) {
    if (one.parameters() == parameters_) added_ = (added_ + 1) % batches_;
  }));
}

void Accumulation::stand_at(bool first, bool last) {
  added_ = first ? 0 : 1;
  batches_ = (first ? 0 : 1) + (last ? 1 : 2);
}

namespace {

void check_accumulation(const DistributedStrategy& strategy) {
  require_at_least_one("accumulate_steps", strategy.accumulate_steps);
}

void apply_accumulation(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  const std::vector<Variable>& own = to.optimizer.parameters();
  auto is_another = [&](const std::vector<Variable>& one) {
    return std::find_first_of(one.begin(), one.end(), own.begin(), own.end()) == one.end();
  };
  const std::vector<std::vector<Variable>>& all = to.job.optimizers;
  const int64_t batches = to.strategy.accumulate_steps;
  if ((kept && is_another(static_cast<const Accumulation&>(*kept).parameters())) ||
      (batches > 1 && std::any_of(all.begin(), all.end(), is_another)))
    throw_error<ConfigError>(
        "[fleet] accumulate_steps goes with one optimizer, and this program has several; leave it out, and call "
        "step() after as many backward() as are to add up, under fleet::WithoutReduction but for the last");
  kept.reset();
  if (batches > 1) kept = std::make_unique<Accumulation>(to.optimizer, batches);
}

void compare_accumulation(const Applied& to, comm::Settings& settings) {
  settings.emplace_back("accumulate_steps", print(to.strategy.accumulate_steps));
}

}  // namespace

extern const StrategyKind accumulation;
const StrategyKind accumulation{
    .name = "accumulation", .check = check_accumulation, .apply = apply_accumulation, .compare = compare_accumulation};

Accumulation* accumulation_of_job() { return job() ? job()->part<Accumulation>(accumulation) : nullptr; }

}  // namespace bonfire::fleet
