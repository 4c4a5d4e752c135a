#include "bonfire/optim/clip_grad.h"

#include <set>

#include "bonfire/base/error.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/optimizer_update.h"

namespace bonfire::optim {

Tensor clip_grad_norm(std::span<const Variable> parameters, const Scalar& max_norm) {
  NoGrad no_grad;
  PathScope path("clip_grad_norm");
  PhaseScope phase(Phase::update);
  std::vector<Variable> clipped;
  std::vector<Tensor> gradients;
  std::set<const VariableState*> seen;  // tied parameters count once
  for (const Variable& parameter : parameters) {
    if (!parameter.defined()) throw_error<ConfigError>("[clip_grad_norm] a parameter is undefined");
    Tensor gradient = parameter.grad();
    if (!gradient.defined() || !seen.insert(&parameter.state()).second) continue;
    if (!gradients.empty() && gradient.device() != gradients[0].device())
      throw_error<ConfigError>("[clip_grad_norm] {} is on {}, other parameters on {}; clip those of each device apart",
                               parameter.name(), to_string(gradient.device()), to_string(gradients[0].device()));
    gradients.push_back(std::move(gradient));
    clipped.push_back(parameter.grad_variable());
  }
  if (gradients.empty()) return zeros({});
  const Tensor squares = gradient_squares(gradients);
  if (!all_say(StepContext::current().update_is_due))
    return sqrt(squares).to(gradients[0].dtype() == DType::f64 ? DType::f64 : DType::f32);
  Tensors results = clip_gradients(gradients, squares, max_norm);
  for (size_t i = 0; i < clipped.size(); ++i) clipped[i].assign(results[i + 1]);
  return results[0];
}

}  // namespace bonfire::optim
