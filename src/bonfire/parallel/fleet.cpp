#include "bonfire/parallel/fleet.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bonfire/base/checksum.h"
#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/graph/variable_copies.h"
#include "bonfire/parallel/compared.h"
#include "bonfire/parallel/job.h"
#include "bonfire/parallel/tensor_split.h"

namespace bonfire::fleet {
namespace {

// Of one rank's devices the first, the second and so on are those of the others: each is reduced by itself.
void add_devices(Job& self, std::span<const Variable> parameters) {
  std::set<Device> all;
  for (const Variable& parameter : parameters) all.insert(parameter.device());
  for (Device device : all) add_device(self, device);
}

// The first and the last of those values that its rule gives, of a variable that nobody has used yet.
std::vector<std::byte> some_by_rule(const Variable& variable) {
  constexpr int64_t kSome = 64;
  const FirstValues& rule = variable.first_values();
  if (!rule) return {};
  const int64_t all = variable.shape().count(), some = std::min(kSome, all);
  const size_t bytes = static_cast<size_t>(some) * size_of(variable.dtype());
  std::vector<std::byte> values(2 * bytes);
  rule(0, some, variable.dtype(), values.data());
  rule(all - some, some, variable.dtype(), values.data() + bytes);
  return values;
}

// [variables]: whether all ranks would make the same values of it, and none has yet. Then none needs to.
std::vector<bool> have_same_rules(comm::Group& group, const nn::StateDict& variables) {
  constexpr int64_t kHasValues = -1;
  std::vector<int64_t> own, all(variables.size() * static_cast<size_t>(group.size()));
  for (const auto& [name, named] : variables) {
    const Variable variable = here(named);
    const bool is_new = !variable.state().has_values && variable.state().leaf == nullptr && variable.slice().is_all();
    own.push_back(is_new ? static_cast<int64_t>(base::crc32c(some_by_rule(variable))) : kHasValues);
  }
  group.all_gather({own.data(), own.size(), DType::i64}, {all.data(), all.size(), DType::i64});
  std::vector<bool> same;
  for (size_t i = 0; i < own.size(); ++i) {
    bool alike = all[i] != kHasValues;
    for (size_t at = i; at < all.size(); at += own.size()) alike = alike && all[at] == all[i];
    same.push_back(alike);
  }
  return same;
}

void broadcast(comm::Group& group, const Variable& variable) {
  std::vector<std::byte> bytes(variable.stored_spec().bytes());
  if (group.rank() == 0) bytes = variable.save_stored();  // the others need not make theirs
  group.broadcast({bytes.data(), bytes.size(), DType::u8}, 0);
  if (group.rank() != 0) variable.load_stored(bytes);
}

// Ranks along the tensor axis begin with the values of the first, each with its part of them.
void share_out_values(Job& self, const nn::Module& model, const ModelOptions& options) {
  comm::Group& ranks = *self.along(Axis::tensor);
  const nn::StateDict variables = model.state_dict();
  const bool is_cut = std::ranges::any_of(variables, [](const auto& one) { return !one.variable.slice().is_all(); });
  const bool has_plan = !options.split.empty() || !model.splits().empty();
  TensorSplits splits;
  if (!is_cut) comm::require_same(ranks, "distributed_model", compared_of(model));
  if (has_plan) splits = tensor_splits(model, options.split, ranks.size());
  if (!has_plan && !is_cut && rank() == 0)
    base::log_info("[tensor] this model brings no plan: every one of {} ranks holds all of it, and computes all of it",
                   ranks.size());
  share_out(model, splits, ranks.rank(), ranks.size(), &ranks);
  self.traced_anew = self.traced_anew + 1;
}

}  // namespace

namespace {

// What each begins with: its values where it has some, else the first of those that its rule gives.
comm::Settings compared_values_of(const TensorSplits& splits) {
  comm::Settings settings;
  for (const auto& [name, variable, axis, blocks] : splits.shared) {
    const std::vector<std::byte> values = variable.state().has_values ? variable.save_stored() : some_by_rule(variable);
    settings.emplace_back("checksum of the first values of " + name, fmt::format("{:08x}", base::crc32c(values)));
  }
  return settings;
}

}  // namespace

void share_out_layers(const nn::Module& model, const ModelOptions& options) {
  Job& self = joined("share_out_layers");
  if (!self.along(Axis::tensor)) {
    if (!options.split.empty())
      tensor_splits(model, options.split, 1);  // paths that match nothing are wrong everywhere
    return;
  }
  comm::Group& ranks = *self.along(Axis::tensor);
  comm::require_same(ranks, "share_out_layers", compared_of(model));
  const TensorSplits splits = tensor_splits(model, options.split, ranks.size());
  comm::require_same(ranks, "share_out_layers", compared_values_of(splits));
  share_out(model, splits, ranks.rank(), ranks.size());
  self.traced_anew = self.traced_anew + 1;
}

namespace {

// Ranks that share layers, and stages, must update alike as well as replicas.
void require_same_everywhere(const Applied& to) {
  comm::Settings settings = compared_of(to.optimizer, Slices::may_differ);
  for (const StrategyKind* kind : strategy_kinds())
    if (kind->compare != nullptr) kind->compare(to, settings);
  comm::require_same(*to.job.group, "distributed_optimizer", settings);
  if (mesh().size(Axis::tensor) > 1 && to.job.has_replicas())
    comm::require_same(*to.job.along(Axis::data), "distributed_optimizer", compared_of(to.optimizer));
}

}  // namespace

void prepare_devices(const DistributedStrategy& strategy) {
  check_strategy(strategy);
  for (const StrategyKind* kind : strategy_kinds())
    if (kind->prepare != nullptr) kind->prepare(strategy);
}

namespace detail {

void distribute_model(const nn::Module& model, const ModelOptions& options) {
  Job& self = joined("distributed_model");
  if (self.along(Axis::tensor)) {
    share_out_values(self, model, options);
  } else if (!options.split.empty()) {
    tensor_splits(model, options.split, 1);  // paths that match nothing are wrong everywhere
  }
  if (!self.has_replicas()) return;
  std::vector<Variable> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.push_back(parameter);
  nn::StateDict variables = model.state_dict();
  comm::Group& replicas = *self.along(Axis::data);
  comm::require_same(replicas, "distributed_model", compared_of(model));
  add_devices(self, parameters);
  const std::vector<bool> made_alike = have_same_rules(replicas, variables);
  for (size_t i = 0; i < variables.size(); ++i)
    if (!made_alike[i]) broadcast(replicas, variables[i].variable);
  std::vector<int64_t> names;
  auto add_name = [&, number = self.models.size() + 1](const std::string& name) {
    return self.steps->names()->add(number == 1 ? name : fmt::format("{} of model {}", name, number));
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
  const Applied to{self, optimizer, strategy, StepContext::current()};
  for (const StrategyKind* kind : strategy_kinds())
    if (kind->apply != nullptr) kind->apply(to, self.parts[kind]);
  const std::vector<Variable>& parameters = optimizer.parameters();
  std::erase_if(self.optimizers, [&](const std::vector<Variable>& old) {  // of an optimizer that this one replaces
    return std::find_first_of(old.begin(), old.end(), parameters.begin(), parameters.end()) != old.end();
  });
  self.optimizers.push_back(parameters);
  if (world_size() > 1) require_same_everywhere(to);
  if (!self.has_replicas()) return;
  self.traced_anew = self.traced_anew + 1;
  add_devices(self, parameters);
  for (const StrategyKind* kind : strategy_kinds())
    if (kind->meet != nullptr) kind->meet(to);
  watch_steps(self);
}

DistributedWhile::DistributedWhile(const optim::Optimizer& optimizer, const DistributedStrategy& strategy)
    : parameters_(optimizer.parameters()), is_alone_(!job()) {
  if (is_alone_) StepContext::current().job = std::make_unique<Job>();
  try {
    distribute_optimizer(optimizer, strategy);
  } catch (...) {
    end();
    throw;
  }
}

DistributedWhile::~DistributedWhile() { end(); }

void DistributedWhile::end() {
  if (!job()) return;
  std::erase(job()->optimizers, parameters_);
  if (job()->optimizers.empty()) job()->parts.clear();
  if (is_alone_) StepContext::current().job = nullptr;
}

}  // namespace detail

std::string strategy_state() {
  nlohmann::json all = nlohmann::json::object();
  if (job())
    for (const auto& [kind, part] : job()->parts)
      if (const std::string state = part ? part->state() : ""; !state.empty())
        all[kind->name] = nlohmann::json::parse(state);
  return all.dump();
}

void resume_strategies(const std::string& state) {
  const nlohmann::json all = nlohmann::json::parse(state);
  if (!job()) return;
  for (const auto& [kind, part] : job()->parts)
    if (part && all.contains(kind->name)) part->resume(all.at(kind->name).dump());
}

}  // namespace bonfire::fleet
