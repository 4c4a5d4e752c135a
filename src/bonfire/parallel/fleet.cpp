#include "bonfire/parallel/fleet.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/comm/agreement.h"
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

// What is not built yet is refused, not ignored.
void require_built(const DistributedStrategy& strategy) {
  check_strategy(strategy);
  const DistributedStrategy usual;
  auto require = [](bool built, const char* option) {
    if (!built) throw_error<ConfigError>("[fleet] {} is not built yet: leave it at its default", option);
  };
  require(strategy.accumulate_steps == 1, "accumulate_steps");
  require(strategy.num_threads == usual.num_threads && !strategy.cpu_threads, "num_threads or cpu_threads");
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
  comm::require_same(*self.group, "distributed_model", compared_of(model));
  for (const auto& [name, variable] : variables) broadcast(*self.group, variable);
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
  require_built(strategy);
  passes::Options& options = passes::current_options();
  self.changes.make(options, strategy);
  if (strategy.num_iteration_per_drop_scope.chosen)
    runtime::set_release_frequency(strategy.num_iteration_per_drop_scope);
  if (strategy.fetch_frequency.chosen) self.fetch_frequency = strategy.fetch_frequency;
  self.fetches_asked = 0;
  std::optional<LocalSgd> local;
  if (strategy.use_local_sgd) local.emplace(strategy, optimizer.lr());
  if (self.channel < 0) return;
  if (strategy.use_local_sgd.chosen) self.local = std::move(local);
  comm::require_same(*self.group, "distributed_optimizer", compared_of(optimizer, strategy, options));
  self.traced_anew = self.traced_anew + 1;
  optim::Optimizer shared = optimizer;  // copies share everything
  shared.set_after_update(after_update);
  shared.set_condition(used_anywhere);
  require_one_device(optimizer.parameters());
  std::shared_ptr<comm::Group> reducing = self.reducing;
  if (strategy.use_hierarchical_allreduce.chosen)
    reducing = strategy.use_hierarchical_allreduce ? group_by_hosts(self) : self.group;
  widen_channel(self, reducing, options.communicators);
  const std::vector<Variable>& parameters = optimizer.parameters();
  std::erase_if(self.optimizers, [&](const std::vector<Variable>& old) {  // of an optimizer that this one replaces
    return std::find_first_of(old.begin(), old.end(), parameters.begin(), parameters.end()) != old.end();
  });
  self.optimizers.push_back(parameters);
  lay_out_gradients(self, parameters);
  if (strategy.sync_batch_norm.chosen) options.sync_batch_norm = strategy.sync_batch_norm ? self.channel : -1;
  watch_steps(self);
}

}  // namespace detail
}  // namespace bonfire::fleet
