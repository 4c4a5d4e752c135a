#include "bonfire/parallel/strategies/sharding.h"

#include <algorithm>
#include <array>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/collectives.h"
#include "bonfire/comm/flat_parts.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable_copies.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"

namespace bonfire::fleet {

namespace {

constexpr std::array<std::pair<const char*, Sharded>, 4> kLevels = {{{"off", Sharded::off},
                                                                     {"optimizer", Sharded::optimizer},
                                                                     {"gradients", Sharded::gradients},
                                                                     {"parameters", Sharded::parameters}}};

Slice own_part(const Variable& parameter) {
  return comm::flat_part(parameter.shape(), mesh().place(Axis::data), mesh().size(Axis::data));
}

Variable sum_of(const Variable& parameter) { return Variable(parameter.spec(), parameter.name() + ".grad.sum"); }

}  // namespace

Sharded sharded_by(const std::string& name) {
  for (const auto& [level, value] : kLevels)
    if (name == level) return value;
  throw_error<ConfigError>("[strategy] sharding is '{}', expected off, optimizer, gradients or parameters", name);
}

// Their memory is taken when it is used, so nothing whole is made of what is a part from here on.
DataSharding::DataSharding(const Applied& to)
    : level_(sharded_by(to.strategy.sharding)), context_(to.context), parameters_(to.optimizer.parameters()) {
  const auto keeps = level_ == Sharded::parameters ? optim::Optimizer::Keeps::all : optim::Optimizer::Keeps::states;
  for (const Variable& parameter : parameters_) {
    if (!to.job.parameters.contains(&parameter.state()))
      throw_error<ConfigError>(
          "[strategy] sharding shares out {}, and the model that has it is not distributed: call "
          "fleet::distributed_model before distributed_optimizer",
          parameter.name().empty() ? "a parameter" : parameter.name());
    to.optimizer.keep_slice(parameter, own_part(parameter), keeps);
    Own& one = own_[&parameter.state()];
    one = {parameter, to.job.parameters.at(&parameter.state()).name};
    if (level_ == Sharded::optimizer && to.strategy.accumulate_steps > 1) one.sum = sum_of(parameter);
  }
  to.optimizer.lay_out_apart(parameters_);
  context_.shares = this;
}

std::vector<Variable> DataSharding::sums() const {
  std::vector<Variable> all;
  for (const Variable& parameter : parameters_)
    if (const Own& one = own_.at(&parameter.state()); one.sum.defined()) all.push_back(one.sum);
  return all;
}

// Whoever trains the parameters on has whole gradients again.
DataSharding::~DataSharding() {
  context_.shares = nullptr;
  if (level_ == Sharded::parameters) return;
  for (const Variable& parameter : parameters_) {
    const Variable gradient = parameter.grad_variable();
    parameter.clear_grad();
    gradient.set_first_values({});
    gradient.keep_slice(Slice(parameter.shape()));
  }
}

void DataSharding::forget_gathered() {
  for (auto& [state, one] : own_) one.gathered = {};
}

bool DataSharding::take(const Variable& parameter, const Tensor& gradient) {
  if (!reduces(parameter)) return false;
  Tensor& found = own(parameter).found;
  found = found.defined() ? found + gradient : gradient;
  return true;
}

Tensor DataSharding::whole(const Variable& variable) {
  const auto found = own_.find(&variable.state());
  const Tensor part = variable.stored();
  const bool is_trained = found != own_.end() && grad_enabled();
  if (!is_trained)
    return comm::gather_flat(part, variable.shape(), Axis::data, found == own_.end() ? -1 : found->second.name, true);
  // Once until a backward pass: tied layers add up their gradients before these are reduced.
  Own& one = found->second;
  const Node* last = one.gathered.node.get();
  const bool is_same = last != nullptr && Trace::current().pending(one.gathered) && last->inputs[0] == part.value();
  if (!is_same) one.gathered = comm::gather_flat(part, variable.shape(), Axis::data, one.name, true).value();
  return Tensor(one.gathered);
}

Tensor DataSharding::part(const Tensor& whole, const Slice& slice) {
  return bonfire::slice(reshape(whole, {whole.shape().count()}), 0, slice.begin(), slice.end());
}

Tensor DataSharding::part(const Variable& parameter) {
  return level_ == Sharded::parameters ? parameter.stored() : part(parameter.value(), own_part(parameter));
}

void DataSharding::assign(const Variable& parameter, const Tensor& part) {
  if (level_ == Sharded::parameters) return parameter.assign_stored(part);
  parameter.assign(comm::gather_flat(part, parameter.shape(), Axis::data, own(parameter).name));
}

Tensor DataSharding::sum(const Tensor& of_parts) { return comm::all_reduce(of_parts, Axis::data, comm::Reduce::sum); }

// Of what a program has cleared meanwhile nothing is left.
bool DataSharding::has_sum(const Own& one) const {
  const bool is_clear = one.sum_is_clear || one.parameter.state().gradient_is_clear;  // read by every step
  return !is_clear && one.sum.defined();
}

bool DataSharding::is_waiting(const Variable& parameter) const {
  const Own& one = own_.at(&parameter.state());
  return one.found.defined() || has_sum(one);
}

void DataSharding::add_up() {
  for (auto& [state, one] : own_) {
    if (!one.found.defined()) continue;
    const bool adds = has_sum(one);
    if (!one.sum.defined()) one.sum = sum_of(one.parameter);
    one.sum.assign(adds ? one.sum.value() + one.found : one.found);
    one.sum_is_clear = false;
    one.found = {};
    // From here on clearing the gradient clears the sum.
    StepState<bool>& is_clear = one.parameter.state().gradient_is_clear;
    const Variable gradient = one.parameter.grad_variable();
    if (is_clear) gradient.assign_stored(zeros(gradient.stored_spec().shape, gradient.dtype(), gradient.device()));
    is_clear = false;
  }
}

void DataSharding::reduce(const Variable& parameter, int64_t name) {
  Own& one = own(parameter);
  Tensor all = std::exchange(one.found, {});
  if (has_sum(one)) all = all.defined() ? one.sum.value() + all : one.sum.value();
  if (!all.defined()) all = zeros(parameter.shape(), parameter.dtype(), parameter.device());
  one.sum_is_clear = true;
  const Tensor part = comm::scatter_flat(all, Axis::data, comm::Reduce::mean, name);
  StepState<bool>& is_clear = parameter.state().gradient_is_clear;
  const Variable gradient = parameter.grad_variable();
  gradient.assign_stored(is_clear ? part : gradient.stored() + part);
  is_clear = false;
}

namespace {

void check_sharding(const DistributedStrategy& strategy) {
  if (sharded_by(strategy.sharding) != Sharded::off && strategy.use_local_sgd)
    throw_error<ConfigError>(
        "[strategy] sharding shares out one update among all ranks, and with use_local_sgd each rank updates by "
        "itself; leave one of them out");
}

void apply_sharding(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  const Sharded level = sharded_by(to.strategy.sharding);
  if (kept) {
    const auto& before = static_cast<const DataSharding&>(*kept);
    if (before.parameters() == to.optimizer.parameters() && level == before.level()) return;
    throw_error<ConfigError>(
        "[strategy] sharding goes with one optimizer, whose states are shared out for good, and this job has shared "
        "out those of another, or in another way; make one distributed_optimizer");
  }
  if (level == Sharded::off) return;
  if (mesh().size(Axis::tensor) > 1 || mesh().size(Axis::pipeline) > 1)
    throw_error<ConfigError>(
        "[strategy] sharding is not available yet where ranks share layers or stages, and this job is {}; leave "
        "strategy.sharding or the other axes of the mesh out",
        to_string(mesh()));
  if (!to.job.has_replicas()) return;  // one rank has all
  if (level == Sharded::parameters && copies_are_elsewhere())
    throw_error<ConfigError>(
        "[strategy] sharding: parameters would leave a model of the program's own in parts that end with the threads "
        "of "
        "its devices; take gradients, or a process for each device (bonfire launch)");
  kept = std::make_unique<DataSharding>(to);
}

void compare_sharding(const Applied& to, comm::Settings& settings) {
  settings.emplace_back("sharding", to.strategy.sharding);
}

}  // namespace

extern const StrategyKind sharding;
const StrategyKind sharding{
    .name = "sharding", .check = check_sharding, .apply = apply_sharding, .compare = compare_sharding};

DataSharding* sharding_of_job() { return job() ? job()->part<DataSharding>(sharding) : nullptr; }

}  // namespace bonfire::fleet
