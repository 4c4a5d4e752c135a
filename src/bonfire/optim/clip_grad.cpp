#include "bonfire/optim/clip_grad.h"

#include <map>
#include <optional>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable_shares.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/optimizer_update.h"

namespace bonfire::optim {

namespace {

// Of one device, and either shared out over ranks or not.
struct Clipped {
  std::vector<Variable> variables;
  std::vector<Tensor> gradients;
};
using ClippedKey = std::pair<Device, bool>;

Tensor squares_of(const Clipped& some, VariableShares* shared) {
  const Tensor squares = gradient_squares(some.gradients);
  return shared != nullptr ? shared->sum(squares) : squares;
}

}  // namespace

Tensor clip_grad_norm(std::span<const Variable> parameters, const Scalar& max_norm) {
  NoGrad no_grad;
  PathScope path("clip_grad_norm");
  PhaseScope phase(Phase::update);
  VariableShares* shared = StepContext::current().shares;
  std::map<ClippedKey, Clipped> alike;
  std::optional<ClippedKey> first;      // of the parameters, whose device has the norm
  std::set<const VariableState*> seen;  // tied parameters count once
  for (const Variable& parameter : parameters) {
    if (!parameter.defined()) throw_error<ConfigError>("[clip_grad_norm] a parameter is undefined");
    const bool is_shared = shared != nullptr && shared->has(parameter);
    Tensor gradient = is_shared ? parameter.stored_grad() : parameter.grad();
    if (!gradient.defined() || !seen.insert(&parameter.state()).second) continue;
    const ClippedKey key{gradient.device(), is_shared};
    if (!first) first = key;
    alike[key].gradients.push_back(std::move(gradient));
    alike[key].variables.push_back(parameter.grad_variable());
  }
  if (!first) return zeros({});
  Tensor squares = squares_of(alike.at(*first), first->second ? shared : nullptr);
  for (const auto& [key, some] : alike)
    if (key != *first) squares = squares + squares_of(some, key.second ? shared : nullptr).to(first->first);
  if (!all_say(StepContext::current().update_is_due))
    return sqrt(squares).to(alike.at(*first).gradients[0].dtype() == DType::f64 ? DType::f64 : DType::f32);
  Tensor norm;
  for (const auto& [key, some] : alike) {
    Tensors results = clip_gradients(some.gradients, squares.to(key.first), max_norm);
    for (size_t i = 0; i < some.variables.size(); ++i)
      key.second ? some.variables[i].assign_stored(results[i + 1]) : some.variables[i].assign(results[i + 1]);
    if (key == *first) norm = results[0];
  }
  return norm;
}

}  // namespace bonfire::optim
