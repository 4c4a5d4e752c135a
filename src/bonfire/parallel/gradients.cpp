#include "bonfire/parallel/gradients.h"

#include <algorithm>
#include <utility>

#include "bonfire/comm/all_reduce.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/parallel/strategies/sharding.h"

namespace bonfire::fleet {
namespace {

// The module of a parameter: a layer's weight and bias are reduced together.
std::string_view module_of(const Variable& parameter) {
  size_t dot = parameter.name().rfind('.');
  return dot == std::string::npos ? std::string_view("parameters") : std::string_view(parameter.name()).substr(0, dot);
}

}  // namespace

ModelGradients::ModelGradients(std::vector<Variable> parameters, std::vector<int64_t> names, int64_t uses_name)
    : parameters_(std::move(parameters)), names_(std::move(names)), uses_name_(uses_name) {
  auto count = static_cast<int64_t>(parameters_.size());
  Device device = parameters_.empty() ? Device{} : parameters_[0].device();
  uses_ = Variable({{count}, DType::f32, device}, "uses");
  only_others_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) places_.emplace(&parameters_[i].state(), i);
  for (int64_t i = count; i-- > 0;) order_.push_back(i);
}

// By modules, because a layer is reduced as a whole: one whose last gradient comes earlier goes first. What this pass
// has not used comes last.
std::vector<int64_t> ModelGradients::order_of(std::span<const Variable> written) const {
  const size_t never = written.size();
  std::vector<size_t> made(parameters_.size(), never);  // [parameters]: place among those written
  std::map<std::string_view, size_t> complete;          // module → the place of its last one
  for (size_t i = 0; i < written.size(); ++i)
    if (auto found = places_.find(&written[i].state()); found != places_.end()) {
      made[found->second] = i;
      complete[module_of(written[i])] = i;
    }
  auto key = [&](int64_t place) {
    const auto i = static_cast<size_t>(place);
    auto module = complete.find(module_of(parameters_[i]));
    return std::pair(module == complete.end() ? never : module->second, made[i]);
  };
  std::vector<int64_t> order;
  for (auto i = static_cast<int64_t>(parameters_.size()); i-- > 0;) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
  return order;
}

void ModelGradients::set_order(std::vector<int64_t> order) {
  order_ = std::move(order);
  has_order_ = true;
}

std::vector<Variable> ModelGradients::in_order() const {
  std::vector<Variable> list;
  for (int64_t i : order_)
    if (parameters_[static_cast<size_t>(i)].requires_grad()) list.push_back(parameters_[static_cast<size_t>(i)]);
  return list;
}

bool ModelGradients::note(const std::set<const VariableState*>& written) {
  bool any = false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!written.contains(&parameters_[i].state())) continue;
    only_others_[i] = false;
    any = true;
  }
  return any;
}

Tensor ModelGradients::used_anywhere(const Variable& parameter) const {
  auto found = places_.find(&parameter.state());
  if (found == places_.end() || !only_others_[found->second]) return {};
  auto place = static_cast<int64_t>(found->second);
  return greater(slice(uses_.value(), 0, place, place + 1), 0.0);
}

void ModelGradients::reduce() {
  DataSharding* sharding = sharding_of_job();
  // Gradients of parameters that are parts are reduced where the backward pass makes them.
  auto is_reduced = [&](const Variable& parameter) {
    return !parameter.requires_grad() ||
           (sharding != nullptr && sharding->has(parameter) && !sharding->reduces(parameter));
  };
  if (std::ranges::all_of(parameters_, is_reduced)) return;
  std::vector<float> here;
  bool adds = false;  // to gradients that only other ranks have given so far
  for (size_t i = 0; i < parameters_.size(); ++i) {
    bool clear = parameters_[i].state().gradient_is_clear;
    if (sharding != nullptr && sharding->reduces(parameters_[i])) clear &= !sharding->is_waiting(parameters_[i]);
    adds |= !clear && only_others_[i];
    if (clear) only_others_[i] = true;
    here.push_back(only_others_[i] ? 0.0F : 1.0F);
  }
  if (here != used_here_) {
    used_here_tensor_ = Tensor::from<float>(here, uses_.shape(), uses_.device());
    used_here_ = here;
  }
  {
    PathScope path(module_of(parameters_[static_cast<size_t>(order_.front())]));
    Tensor mine = adds ? maximum(uses_.value(), used_here_tensor_) : used_here_tensor_;
    uses_.assign(comm::all_reduce_named(mine, Axis::data, comm::Reduce::mean, uses_name_));
  }
  for (int64_t place : order_) {
    const auto i = static_cast<size_t>(place);
    const Variable& parameter = parameters_[i];
    if (is_reduced(parameter)) continue;
    PathScope path(module_of(parameter));
    if (sharding != nullptr && sharding->has(parameter)) {
      sharding->reduce(parameter, names_[i]);
      continue;
    }
    VariableState& state = parameter.state();
    Variable gradient = parameter.grad_variable();
    if (state.gradient_is_clear) gradient.assign(zeros(parameter.shape(), parameter.dtype(), parameter.device()));
    state.gradient_is_clear = false;
    gradient.assign(comm::all_reduce_named(gradient.value(), Axis::data, comm::Reduce::mean, names_[i]));
  }
}

}  // namespace bonfire::fleet
