#pragma once
// The update rules of all optimizers, once, for all backends: what happens to one element. Acc is the type they compute
// in: double for f64, otherwise float.

#include <cmath>
#include <cstdint>

#include "bonfire/base/random.h"  // BONFIRE_HOST_DEVICE

namespace bonfire {

enum class OptimizerRule : int { sgd, momentum, adagrad, adam, adamw, lars, lamb };

// Tensors of state that a rule keeps for each parameter.
constexpr int state_count(OptimizerRule rule) {
  switch (rule) {
    case OptimizerRule::sgd: return 0;
    case OptimizerRule::momentum:
    case OptimizerRule::adagrad:
    case OptimizerRule::lars: return 1;
    default: return 2;
  }
}

// LARS and LAMB scale the step of each tensor by a ratio of norms: of (parameter, gradient) for LARS, of (parameter,
// direction) for LAMB, whose moments are updated first.
constexpr bool has_trust_ratio(OptimizerRule rule) {
  return rule == OptimizerRule::lars || rule == OptimizerRule::lamb;
}

// The numbers of one step as the op gets them. What first and second are depends on the rule: momentum (momentum,
// lars), beta 1 and beta 2 (adam, adamw, lamb), or the trust coefficient (lars: second).
struct OptimizerNumbers {
  double lr, weight_decay, first, second, eps;
  int64_t step;  // this one's number, from 1
};

// The same, made ready for the loop over elements. Differences to 1 are taken in double: in float, 1 − 0.999 has four
// digits.
template <class Acc>
struct OptimizerStep {
  Acc lr, weight_decay, first, second, eps;
  Acc rest_first, rest_second;        // 1 − beta 1, 1 − beta 2
  Acc correct_first, correct_second;  // 1 / (1 − beta 1^step), 1 / √(1 − beta 2^step)
  Acc shrink;                         // 1 − lr · weight_decay

  BONFIRE_HOST_DEVICE static OptimizerStep from(const OptimizerNumbers& n) {
    const double t = static_cast<double>(n.step);
    return {.lr = static_cast<Acc>(n.lr),
            .weight_decay = static_cast<Acc>(n.weight_decay),
            .first = static_cast<Acc>(n.first),
            .second = static_cast<Acc>(n.second),
            .eps = static_cast<Acc>(n.eps),
            .rest_first = static_cast<Acc>(1 - n.first),
            .rest_second = static_cast<Acc>(1 - n.second),
            .correct_first = static_cast<Acc>(1 / (1 - std::pow(n.first, t))),
            .correct_second = static_cast<Acc>(1 / std::sqrt(1 - std::pow(n.second, t))),
            .shrink = static_cast<Acc>(1 - n.lr * n.weight_decay)};
  }
};

template <class Acc>
BONFIRE_HOST_DEVICE inline void update_moments(const OptimizerStep<Acc>& s, Acc gradient, Acc& mean, Acc& square) {
  mean = s.first * mean + s.rest_first * gradient;
  square = s.second * square + s.rest_second * gradient * gradient;
}

// m̂ / (√v̂ + eps)
template <class Acc>
BONFIRE_HOST_DEVICE inline Acc adam_direction(const OptimizerStep<Acc>& s, Acc mean, Acc square) {
  return mean * s.correct_first / (std::sqrt(square) * s.correct_second + s.eps);
}

// LAMB's direction, from moments that are updated already.
template <class Acc>
BONFIRE_HOST_DEVICE inline Acc lamb_direction(const OptimizerStep<Acc>& s, Acc parameter, Acc mean, Acc square) {
  return adam_direction(s, mean, square) + s.weight_decay * parameter;
}

// LARS: trust |w| / (|g| + weight_decay |w| + eps); 1 where a norm is 0.
template <class Acc>
BONFIRE_HOST_DEVICE inline Acc lars_ratio(const OptimizerStep<Acc>& s, Acc parameter_norm, Acc gradient_norm) {
  if (!(parameter_norm > 0 && gradient_norm > 0)) return Acc(1);
  return s.second * parameter_norm / (gradient_norm + s.weight_decay * parameter_norm + s.eps);
}
// LAMB: |w| / |direction|; 1 where a norm is 0.
template <class Acc>
BONFIRE_HOST_DEVICE inline Acc lamb_ratio(Acc parameter_norm, Acc direction_norm) {
  return parameter_norm > 0 && direction_norm > 0 ? parameter_norm / direction_norm : Acc(1);
}

// One element. `ratio` is the tensor's trust ratio, for the rules that have one. LAMB's moments must be updated before.
template <OptimizerRule rule, bool nesterov, class Acc>
BONFIRE_HOST_DEVICE inline void update_element(const OptimizerStep<Acc>& s, Acc gradient, Acc ratio, Acc& parameter,
                                               Acc& state0, Acc& state1) {
  if constexpr (rule == OptimizerRule::lamb) {
    parameter -= s.lr * ratio * lamb_direction(s, parameter, state0, state1);
  } else if constexpr (rule == OptimizerRule::adamw) {
    parameter *= s.shrink;
    update_moments(s, gradient, state0, state1);
    parameter -= s.lr * adam_direction(s, state0, state1);
  } else {
    gradient += s.weight_decay * parameter;
    if constexpr (rule == OptimizerRule::sgd) parameter -= s.lr * gradient;
    if constexpr (rule == OptimizerRule::momentum) {
      state0 = s.first * state0 + gradient;
      parameter -= s.lr * (nesterov ? gradient + s.first * state0 : state0);
    }
    if constexpr (rule == OptimizerRule::adagrad) {
      state0 += gradient * gradient;
      parameter -= s.lr * gradient / (std::sqrt(state0) + s.eps);
    }
    if constexpr (rule == OptimizerRule::adam) {
      update_moments(s, gradient, state0, state1);
      parameter -= s.lr * adam_direction(s, state0, state1);
    }
    if constexpr (rule == OptimizerRule::lars) {
      state0 = s.first * state0 + ratio * gradient;
      parameter -= s.lr * state0;
    }
  }
}

}  // namespace bonfire
