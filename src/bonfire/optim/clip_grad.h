#pragma once
// Gradient clipping by the norm of all gradients together.

#include <span>
#include <vector>

#include "bonfire/graph/variable.h"

namespace bonfire::optim {

// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)) and returns the norm before, a tensor of rank 0.
// Between backward() and step(); while gradients still add up (strategy.accumulate_steps) they stay as they are.
// Parameters without a gradient are passed over. They may be on several devices, each of which adds up its own squares.
Tensor clip_grad_norm(std::span<const Variable> parameters, const Scalar& max_norm);

template <std::derived_from<Variable> V>
Tensor clip_grad_norm(const std::vector<V>& parameters, const Scalar& max_norm) {
  std::vector<Variable> variables(parameters.begin(), parameters.end());
  return clip_grad_norm(std::span<const Variable>(variables), max_norm);
}

}  // namespace bonfire::optim
