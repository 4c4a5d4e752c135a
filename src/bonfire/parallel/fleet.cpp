#include "bonfire/parallel/fleet.h"

#include <algorithm>

#include "bonfire/backend/cpu/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/parallel/compared.h"
#include "bonfire/parallel/job.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::fleet {
namespace {

void require_one_device(std::span<const Variable> variables) {
  for (const Variable& variable : variables)
    if (!(variable.device() == variables[0].device()))
      throw_error<ConfigError>("[fleet] parameter {} is on {} and {} on {}; a rank has one device", variables[0].name(),
                               to_string(variables[0].device()), variable.name(), to_string(variable.device()));
}

bool have_one_in_common(const std::vector<Variable>& some, const std::vector<Variable>& others) {
  return std::find_first_of(some.begin(), some.end(), others.begin(), others.end()) != some.end();
}

void use_threads(const DistributedStrategy& strategy, Device device) {
  if (strategy.cpu_threads) cpu::set_cpu_threads(static_cast<int>(*strategy.cpu_threads));
  if (!strategy.num_threads.chosen) return;
  cpu::set_ops_in_flight(static_cast<int>(strategy.num_threads));
  if (device.type != DeviceType::cpu || queue_of(device).steps_in_flight() == strategy.num_threads) return;
  throw_error<ConfigError>(
      "[fleet] num_threads is {}, but {} is in use already, with {}; call distributed_optimizer before anything is "
      "computed, or set BONFIRE_OPS_IN_FLIGHT",
      strategy.num_threads.value, to_string(device), queue_of(device).steps_in_flight());
}

void accumulate(Job& self, const optim::Optimizer& optimizer, int64_t batches) {
  auto is_another = [&](const std::vector<Variable>& one) { return !have_one_in_common(one, optimizer.parameters()); };
  const bool goes_on = self.accumulation && is_another(self.accumulation->parameters());
  if (goes_on || (batches > 1 && std::any_of(self.optimizers.begin(), self.optimizers.end(), is_another)))
    throw_error<ConfigError>(
        "[fleet] accumulate_steps goes with one optimizer, and this program has several; leave it out, and call "
        "step() after as many backward() as are to add up, under fleet::WithoutReduction but for the last");
  self.accumulation.reset();
  if (batches > 1) self.accumulation.emplace(optimizer, batches);
}

void broadcast(comm::Group& group, const Variable& variable) {
  std::vector<std::byte> bytes = variable.save();
  group.broadcast({bytes.data(), bytes.size(), DType::u8}, 0);
  if (group.rank() != 0) variable.load(bytes);
}

}  // namespace

bool fetch_due() { return !job() || job()->fetches_asked++ % job()->fetch_frequency == 0; }

namespace detail {

void distribute_model(const nn::Module& model) {
  Job& self = joined("distributed_model");
  if (self.channel < 0) return;
  std::vector<Variable> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.push_back(parameter);
  require_one_device(parameters);
  nn::StateDict variables = model.state_dict();
  comm::Group& replicas = *self.along(Axis::data);
  comm::require_same(replicas, "distributed_model", compared_of(model));
  for (const auto& [name, variable] : variables) broadcast(replicas, variable);
  std::vector<int64_t> names;
  auto add_name = [&, number = self.models.size() + 1](const std::string& name) {
    self.names->push_back(number == 1 ? name : fmt::format("{} of model {}", name, number));
    return static_cast<int64_t>(self.names->size()) - 1;
  };
  std::erase_if(parameters, [&](const Variable& one) { return self.parameters.contains(&one.state()); });
  for (const Variable& parameter : parameters) {
    names.push_back(add_name(parameter.name()));
    self.parameters.emplace(&parameter.state(), DistributedParameter{parameter, names.back()});
  }
  if (parameters.empty()) return;
  self.traced_anew = self.traced_anew + 1;
  self.models.emplace_back(parameters, std::move(names), add_name("uses of parameters"));
  lay_out_gradients_of(self, parameters);
}

void distribute_optimizer(const optim::Optimizer& optimizer, const DistributedStrategy& strategy) {
  Job& self = joined("distributed_optimizer");
  check_strategy(strategy);
  passes::Options& options = StepContext::current().options;
  self.changes.make(options, strategy);
  if (strategy.num_iteration_per_drop_scope.chosen)
    runtime::set_release_frequency(strategy.num_iteration_per_drop_scope);
  if (strategy.fetch_frequency.chosen) self.fetch_frequency = strategy.fetch_frequency;
  self.fetches_asked = 0;
  std::optional<LocalSgd> local;
  if (strategy.use_local_sgd) local.emplace(strategy, optimizer.lr());
  use_threads(strategy, optimizer.parameters()[0].device());
  accumulate(self, optimizer, strategy.accumulate_steps);
  const std::vector<Variable>& parameters = optimizer.parameters();
  std::erase_if(self.optimizers, [&](const std::vector<Variable>& old) {  // of an optimizer that this one replaces
    return have_one_in_common(old, parameters);
  });
  self.optimizers.push_back(parameters);
  if (self.channel < 0) return;
  if (strategy.use_local_sgd.chosen) self.local = std::move(local);
  comm::require_same(*self.along(Axis::data), "distributed_optimizer", compared_of(optimizer, strategy, options));
  self.traced_anew = self.traced_anew + 1;
  require_one_device(optimizer.parameters());
  std::shared_ptr<comm::Group> reducing = self.reducing;
  if (strategy.use_hierarchical_allreduce.chosen)
    reducing = strategy.use_hierarchical_allreduce ? group_by_hosts(self) : self.along(Axis::data);
  widen_channel(self, reducing, options.communicators);
  lay_out_gradients(self, parameters);
  if (strategy.sync_batch_norm.chosen) options.sync_batch_norm = strategy.sync_batch_norm ? self.channel : -1;
  watch_steps(self);
}

}  // namespace detail
}  // namespace bonfire::fleet
