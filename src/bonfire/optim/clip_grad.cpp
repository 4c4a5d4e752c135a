#include "bonfire/optim/clip_grad.h"

#include <map>
#include <optional>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/optimizer_update.h"

namespace bonfire::optim {

namespace {

// Of one device.
struct Clipped {
  std::vector<Variable> variables;
  std::vector<Tensor> gradients;
};

}  // namespace

Tensor clip_grad_norm(std::span<const Variable> parameters, const Scalar& max_norm) {
  NoGrad no_grad;
  PathScope path("clip_grad_norm");
  PhaseScope phase(Phase::update);
  std::map<Device, Clipped> by_device;
  std::optional<Device> first;          // of the parameters, which has the norm
  std::set<const VariableState*> seen;  // tied parameters count once
  for (const Variable& parameter : parameters) {
    if (!parameter.defined()) throw_error<ConfigError>("[clip_grad_norm] a parameter is undefined");
    Tensor gradient = parameter.grad();
    if (!gradient.defined() || !seen.insert(&parameter.state()).second) continue;
    if (!first) first = gradient.device();
    Clipped& here = by_device[gradient.device()];
    here.gradients.push_back(std::move(gradient));
    here.variables.push_back(parameter.grad_variable());
  }
  if (!first) return zeros({});
  Tensor squares = gradient_squares(by_device.at(*first).gradients);
  for (const auto& [device, here] : by_device)
    if (device != *first) squares = squares + gradient_squares(here.gradients).to(*first);
  if (!all_say(StepContext::current().update_is_due))
    return sqrt(squares).to(by_device.at(*first).gradients[0].dtype() == DType::f64 ? DType::f64 : DType::f32);
  Tensor norm;
  for (const auto& [device, here] : by_device) {
    Tensors results = clip_gradients(here.gradients, squares.to(device), max_norm);
    for (size_t i = 0; i < here.variables.size(); ++i) here.variables[i].assign(results[i + 1]);
    if (device == *first) norm = results[0];
  }
  return norm;
}

}  // namespace bonfire::optim
