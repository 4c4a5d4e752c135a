#include <algorithm>
#include <set>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/comm/all_reduce.h"
#include "bonfire/graph/engine.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"
#include "bonfire/parallel/strategies/sharding.h"
#include "bonfire/passes/pass.h"

namespace bonfire::fleet {

namespace {

StepState<int>& without_reduction() { return StepContext::current().without_reduction; }

// The order of rank 0's first backward pass becomes everyone's. Nothing else may use the steps' groups meanwhile.
void settle_order(Job& self, size_t number, std::span<const Variable> written) {
  ModelGradients& model = self.models[number];
  engine().synchronize();
  comm::Group& group = self.steps->along(Axis::data)->group();
  comm::agree(group, {{{0, fmt::format("order of the gradients of model {}", number + 1)}}});
  std::vector<int64_t> order = model.order_of(written);
  group.broadcast({order.data(), order.size(), DType::i64}, 0);
  const std::vector<Variable> before = model.in_order();
  model.set_order(std::move(order));
  if (model.in_order() != before) lay_out_gradients_of(self, before);
}

}  // namespace

// What a backward pass calls: see ModelGradients.
void reduce_gradients(std::span<const Variable> written) {
  Job& self = *job();
  NoGrad no_grad;
  std::set<const VariableState*> states;
  for (const Variable& parameter : written) states.insert(&parameter.state());
  self.traced_anew.get();
  const bool later = without_reduction() > 0 || !all_say(StepContext::current().reduces_gradients);
  DataSharding* sharding = sharding_of_job();
  if (sharding != nullptr) sharding->forget_gathered();
  const bool adds_up = later && (sharding == nullptr || sharding->level() == Sharded::optimizer);
  if (adds_up && sharding != nullptr) sharding->add_up();
  for (size_t i = 0; i < self.models.size(); ++i) {
    if (!self.models[i].note(states) || adds_up) continue;
    if (!self.models[i].has_order()) settle_order(self, i, written);
    self.models[i].reduce();
  }
}

// The optimizer's condition: undefined where this rank has used the parameter.
Tensor used_anywhere(const Variable& parameter) {
  for (const ModelGradients& model : job()->models)
    if (Tensor used = model.used_anywhere(parameter); used.defined()) return used;
  return {};
}

// All parameters become their mean over the ranks. In the order of their names, which is the same everywhere.
void average_parameters(const Job& self) {
  NoGrad no_grad;
  std::map<int64_t, Variable> in_order;
  for (const auto& [state, parameter] : self.parameters) in_order.emplace(parameter.name, parameter.variable);
  for (const auto& [name, variable] : in_order)
    variable.assign(comm::all_reduce_named(variable.value(), Axis::data, comm::Reduce::mean, name));
}

void average_over_ranks(std::span<const Variable> some) {
  NoGrad no_grad;
  for (const Variable& variable : some)
    variable.assign(comm::all_reduce(variable.value(), Axis::data, comm::Reduce::mean));
}

WithoutReduction::WithoutReduction() { without_reduction() = without_reduction() + 1; }
WithoutReduction::~WithoutReduction() { without_reduction() = without_reduction() - 1; }

StandIns::StandIns(bool are) : before_(std::exchange(StepContext::current().options.stand_ins, are)) {}
StandIns::~StandIns() { StepContext::current().options.stand_ins = before_; }

}  // namespace bonfire::fleet
