#include "bonfire/optim/optimizer.h"

#include <algorithm>
#include <map>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/comm/joined.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable_shares.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/optimizer_update.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::optim {

namespace {

// Parameters that one node updates: of one group, device and element type.
struct Bucket {
  size_t group;
  std::vector<Variable> parameters;
  std::vector<std::vector<Variable>> states;  // [kind of state][parameter]
  Variable counts;                            // i64 [parameter]: updates of each
  OptimizerUpdate update;
};

void require_not_negative(const char* optimizer, const char* what, double value) {
  if (!(value >= 0)) throw_error<ConfigError>("[{}] {} is {}, expected at least 0", optimizer, what, value);
}

// One allocation a device, last parameter first.
void lay_out(const std::vector<Variable>& variables) {
  std::map<Device, std::vector<Variable>> by_device;
  for (auto variable = variables.rbegin(); variable != variables.rend(); ++variable)
    by_device[variable->device()].push_back(*variable);
  for (const auto& [device, list] : by_device) make_contiguous(list);
}

}  // namespace

struct Optimizer::Impl {
  Settings settings;
  double lr;
  std::vector<double> proportions;  // of each group's rate to lr
  std::vector<Variable> parameters;
  std::vector<Bucket> buckets;

  void add_group(const ParameterGroup& group, size_t index, std::set<const VariableState*>& seen) {
    double decay = group.weight_decay.value_or(settings.weight_decay);
    require_not_negative(settings.name, "lr of a group", group.lr.value_or(0));
    require_not_negative(settings.name, "weight_decay", decay);
    if (group.lr && settings.lr == 0)
      throw_error<ConfigError>("[{}] a group has a rate of its own beside an lr of 0: their proportion is not defined",
                               settings.name);
    proportions.push_back(group.lr ? *group.lr / settings.lr : 1);
    std::map<std::pair<Device, DType>, size_t> own;  // → bucket
    for (const Variable& parameter : group.parameters) {
      if (!parameter.defined()) throw_error<ConfigError>("[{}] a parameter is undefined", settings.name);
      if (!parameter.requires_grad() || !seen.insert(&parameter.state()).second) continue;
      auto [found, is_new] = own.try_emplace({parameter.device(), parameter.dtype()}, buckets.size());
      if (is_new) buckets.push_back(make_bucket(index, decay));
      buckets[found->second].parameters.push_back(parameter);
      parameters.push_back(parameter);
    }
  }

  Bucket make_bucket(size_t group, double decay) const {
    Bucket bucket;
    bucket.group = group;
    bucket.states.resize(settings.state_names.size());
    bucket.update = {.rule = settings.rule,
                     .nesterov = settings.nesterov,
                     .lr = settings.lr * proportions[group],
                     .weight_decay = decay,
                     .first = settings.first,
                     .second = settings.second,
                     .eps = settings.eps};
    return bucket;
  }

  void make_states() {
    lay_out(parameters);
    std::vector<Variable> gradients;
    for (const Variable& parameter : parameters) gradients.push_back(parameter.grad_variable());
    lay_out(gradients);
    for (size_t i = 0; i < buckets.size(); ++i) {
      const std::vector<Variable>& own = buckets[i].parameters;
      buckets[i].counts = Variable({{static_cast<int64_t>(own.size())}, DType::i64, own[0].device()},
                                   i == 0 ? "step" : fmt::format("step.{}", i));
    }
    std::map<const VariableState*, std::string> names;
    for (size_t i = 0; i < parameters.size(); ++i)
      names[&parameters[i].state()] = parameters[i].name().empty() ? std::to_string(i) : parameters[i].name();
    for (size_t kind = 0; kind < settings.state_names.size(); ++kind) {
      std::vector<Variable> all;
      for (Bucket& bucket : buckets)
        for (const Variable& parameter : bucket.parameters) {
          TensorSpec spec = parameter.spec();
          spec.dtype = spec.dtype == DType::f64 ? DType::f64 : DType::f32;
          Variable state(spec, names.at(&parameter.state()) + "." + settings.state_names[kind]);
          state.keep_slice(parameter.slice());
          if (settings.initial_state != 0)
            state.set_first_values(
                first_values([value = static_cast<float>(settings.initial_state)](int64_t) { return value; }));
          bucket.states[kind].push_back(state);
          all.push_back(state);
        }
      lay_out(all);
    }
  }

  // The conditions of all parameters side by side, those in `places` as given; undefined where there are none.
  static Tensor side_by_side(const std::vector<Tensor>& conditions, const std::vector<int64_t>& places,
                             const Bucket& bucket) {
    if (std::none_of(conditions.begin(), conditions.end(), [](const Tensor& one) { return one.defined(); })) return {};
    std::vector<Tensor> all(bucket.parameters.size(), ones({1}, DType::boolean, bucket.counts.device()));
    for (size_t i = 0; i < places.size(); ++i)
      if (conditions[i].defined()) all[static_cast<size_t>(places[i])] = conditions[i];
    return concat(all, 0);
  }

  using Conditions = std::vector<Hooks<Tensor(const Variable&)>::Entry>;

  // Whether the update of the parameter counts: all of them; undefined where none has a say.
  static Tensor all_of(const Conditions& conditions, const Variable& parameter) {
    Tensor all;
    for (const auto& hook : conditions)
      if (Tensor one = hook.call(parameter); one.defined()) all = all.defined() ? where(all, one, all) : one;
    return all;
  }

  // Each updates what it has: of a slice that part. Trust ratios are of whole parameters.
  static void append(const Bucket& bucket, const Conditions& all_conditions, VariableShares* shared) {
    if (shared != nullptr && !shared->has(bucket.parameters[0])) shared = nullptr;
    const bool has_ratio = has_trust_ratio(bucket.update.rule), is_whole = has_ratio && shared == nullptr;
    auto value = [&](const Variable& variable) { return is_whole ? variable.value() : variable.stored(); };
    std::vector<int64_t> updated;
    std::vector<Tensor> parameters, gradients, states, conditions;
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const Variable& parameter = bucket.parameters[i];
      Tensor gradient = is_whole ? parameter.grad() : parameter.stored_grad();
      if (!gradient.defined()) continue;
      updated.push_back(static_cast<int64_t>(i));
      parameters.push_back(shared != nullptr ? shared->part(parameter) : value(parameter));
      gradients.push_back(std::move(gradient));
      conditions.push_back(all_of(all_conditions, parameter));
    }
    if (updated.empty()) return;
    std::vector<Target> targets = {{&bucket.counts, bucket.counts.value()}};
    for (size_t i = 0; i < updated.size(); ++i)
      targets.push_back({&bucket.parameters[static_cast<size_t>(updated[i])], parameters[i], shared});
    for (const std::vector<Variable>& kind : bucket.states)
      for (int64_t i : updated) {
        const Variable& state = kind[static_cast<size_t>(i)];
        states.push_back(value(state));
        targets.push_back({&state, states.back()});
      }
    const UpdateOperands operands =
        update_operands(bucket.update, {bucket.counts.value(), updated}, parameters, gradients, states);
    Tensor squares = has_ratio ? update_squares(operands) : Tensor();
    if (has_ratio && shared != nullptr) squares = shared->sum(squares);
    Tensors results = optimizer_update(operands, squares);
    for (size_t i = 0; i < targets.size(); ++i) {
      Tensor counts = i == 0 ? side_by_side(conditions, updated, bucket) : conditions[(i - 1) % updated.size()];
      if (counts.defined()) results[i] = where(counts, results[i], targets[i].before);
      assign(targets[i], results[i], is_whole);
    }
  }

  // What an update changes.
  struct Target {
    const Variable* variable;
    Tensor before;                     // what is updated of it
    VariableShares* shared = nullptr;  // whose part that is; null: it is what is here
  };

  static void assign(const Target& target, const Tensor& value, bool is_whole) {
    if (target.shared != nullptr) return target.shared->assign(*target.variable, value);
    is_whole ? target.variable->assign(value) : target.variable->assign_stored(value);
  }
};

Optimizer::Optimizer(const ParameterGroups& parameters, const Settings& settings)
    : impl_(std::make_shared<Impl>(Impl{settings, settings.lr, {}, {}, {}})) {
  require_not_negative(settings.name, "lr", settings.lr);
  require_not_negative(settings.name, "eps", settings.eps);
  std::set<const VariableState*> seen;
  for (const ParameterGroup& group : parameters.groups()) impl_->add_group(group, impl_->proportions.size(), seen);
  if (impl_->parameters.empty())
    throw_error<ConfigError>("[{}] there is no parameter that requires a gradient", settings.name);
  impl_->make_states();
}

void Optimizer::step() {
  comm::tell_unless_joined();
  {
    NoGrad no_grad;
    PathScope path("optimizer");
    PhaseScope phase(Phase::update);
    const StepContext& context = StepContext::current();
    if (all_say(context.update_is_due)) {
      const auto conditions = context.update_conditions.calls();
      for (const Bucket& bucket : impl_->buckets) impl_->append(bucket, *conditions, context.shares);
      const auto after = context.after_update.calls();
      for (const auto& hook : *after) hook.call(*this);
    }
    const auto after = context.after_step.calls();
    for (const auto& hook : *after) hook.call(*this);
  }
  commit();
}

void Optimizer::keep_slice(const Variable& parameter, const Slice& slice, Keeps what) const {
  for (const Bucket& bucket : impl_->buckets)
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      if (!(bucket.parameters[i] == parameter)) continue;
      for (const std::vector<Variable>& kind : bucket.states) kind[i].keep_slice(slice);
      if (what == Keeps::states) return parameter.grad_variable().keep_slice(slice);
      return parameter.keep_slice(slice);
    }
  throw_error<ConfigError>("[{}] {} is no parameter that this optimizer updates", impl_->settings.name,
                           parameter.name());
}

void Optimizer::lay_out_apart(const std::vector<Variable>& some) const {
  std::set<const VariableState*> wanted;
  for (const Variable& parameter : some) wanted.insert(&parameter.state());
  std::vector<Variable> parameters, gradients;
  std::vector<std::vector<Variable>> states(impl_->settings.state_names.size());
  for (const Bucket& bucket : impl_->buckets)
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      if (!wanted.contains(&bucket.parameters[i].state())) continue;
      parameters.push_back(bucket.parameters[i]);
      gradients.push_back(bucket.parameters[i].grad_variable());
      for (size_t kind = 0; kind < states.size(); ++kind) states[kind].push_back(bucket.states[kind][i]);
    }
  lay_out(parameters);
  lay_out(gradients);
  for (const std::vector<Variable>& kind : states) lay_out(kind);
}

void Optimizer::clear_grad() const {
  if (!all_say(StepContext::current().gradients_are_done)) return;
  for (const Variable& parameter : impl_->parameters) parameter.clear_grad();
}

double Optimizer::lr() const { return impl_->lr; }
double Optimizer::lr(size_t group) const { return impl_->lr * impl_->proportions.at(group); }

void Optimizer::set_lr(double lr) {
  require_not_negative(impl_->settings.name, "lr", lr);
  impl_->lr = lr;
  for (Bucket& bucket : impl_->buckets) bucket.update.lr.set(lr * impl_->proportions[bucket.group]);
  const auto after = StepContext::current().after_rate.calls();
  for (const auto& hook : *after) hook.call(*this);
}

std::vector<std::pair<std::string, std::string>> Optimizer::settings() const {
  const Settings& s = impl_->settings;
  std::vector<std::pair<std::string, std::string>> list{{"optimizer", s.name}};
  for (const Bucket& bucket : impl_->buckets) {  // of another device or type they repeat
    const std::string group = bucket.group == 0 ? "" : fmt::format(" of group {}", bucket.group + 1);
    list.emplace_back("lr" + group, fmt::format("{}", lr(bucket.group)));
    list.emplace_back("weight_decay" + group, fmt::format("{}", bucket.update.weight_decay.get()));
  }
  const bool has_momentum = s.rule == OptimizerRule::momentum || s.rule == OptimizerRule::lars;
  const bool has_betas =
      s.rule == OptimizerRule::adam || s.rule == OptimizerRule::adamw || s.rule == OptimizerRule::lamb;
  if (has_momentum) list.emplace_back("momentum", fmt::format("{}", s.first));
  if (s.rule == OptimizerRule::momentum) list.emplace_back("nesterov", s.nesterov ? "true" : "false");
  if (s.rule == OptimizerRule::lars) list.emplace_back("trust_coefficient", fmt::format("{}", s.second));
  if (has_betas) list.emplace_back("betas", fmt::format("{} and {}", s.first, s.second));
  if (s.eps != 0) list.emplace_back("eps", fmt::format("{}", s.eps));
  if (s.rule == OptimizerRule::adagrad)
    list.emplace_back("initial_accumulator_value", fmt::format("{}", s.initial_state));
  return list;
}

const std::vector<Variable>& Optimizer::parameters() const { return impl_->parameters; }

std::vector<std::pair<std::string, Variable>> Optimizer::state() const {
  std::vector<std::pair<std::string, Variable>> list;
  for (const Bucket& bucket : impl_->buckets) {
    list.emplace_back(bucket.counts.name(), bucket.counts);
    for (const std::vector<Variable>& kind : bucket.states)
      for (const Variable& state : kind) list.emplace_back(state.name(), state);
  }
  return list;
}

std::vector<std::pair<std::string, Variable>> Optimizer::state_of(const Variable& parameter) const {
  std::vector<std::pair<std::string, Variable>> list;
  for (const Bucket& bucket : impl_->buckets)
    for (size_t i = 0; i < bucket.parameters.size(); ++i)
      if (bucket.parameters[i] == parameter)
        for (const std::vector<Variable>& kind : bucket.states) list.emplace_back(kind[i].name(), kind[i]);
  return list;
}

std::vector<Variable> Optimizer::counts() const {
  std::vector<Variable> list;
  for (const Bucket& bucket : impl_->buckets) list.push_back(bucket.counts);
  return list;
}

}  // namespace bonfire::optim
