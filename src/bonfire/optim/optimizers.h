#pragma once
// The kinds of optimizer, with PyTorch's formulas and defaults (LARS and LAMB as in their papers). w is a parameter, g
// its gradient, t the number of the step from 1. Weight decay is L2, g ← g + weight_decay w, except where said.

#include <array>

#include "bonfire/optim/optimizer.h"

namespace bonfire::optim {

struct SGDOptions {
  double lr = 1e-3;
  double weight_decay = 0;
};
class SGD : public Optimizer {  // w ← w − lr g
 public:
  SGD(const ParameterGroups& parameters, const SGDOptions& options);
};

struct MomentumOptions {
  double lr = 1e-3;
  double momentum = 0.9;
  double weight_decay = 0;
  bool nesterov = false;
};
class Momentum : public Optimizer {  // b ← momentum b + g,  w ← w − lr b;  Nesterov: w ← w − lr (g + momentum b)
 public:
  Momentum(const ParameterGroups& parameters, const MomentumOptions& options);
};

struct AdagradOptions {
  double lr = 1e-2;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};
class Adagrad : public Optimizer {  // s ← s + g²,  w ← w − lr g / (√s + eps)
 public:
  Adagrad(const ParameterGroups& parameters, const AdagradOptions& options);
};

// m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)
struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
};
class Adam : public Optimizer {  // w ← w − lr m̂ / (√v̂ + eps)
 public:
  Adam(const ParameterGroups& parameters, const AdamOptions& options);
};

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
};
class AdamW : public Optimizer {  // w ← w (1 − lr weight_decay) first, instead of L2; then as Adam
 public:
  AdamW(const ParameterGroups& parameters, const AdamWOptions& options);
};

struct LARSOptions {
  double lr = 1e-3;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  double eps = 1e-8;
};
// Per tensor: ratio = trust_coefficient |w| / (|g| + weight_decay |w| + eps), or 1 where |w| or |g| is 0;
// b ← momentum b + ratio (g + weight_decay w),  w ← w − lr b
class LARS : public Optimizer {
 public:
  LARS(const ParameterGroups& parameters, const LARSOptions& options);
};

struct LAMBOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;
};
// Per tensor: u = m̂ / (√v̂ + eps) + weight_decay w,  w ← w − lr (|w| / |u|) u, or lr u where |w| or |u| is 0
class LAMB : public Optimizer {
 public:
  LAMB(const ParameterGroups& parameters, const LAMBOptions& options);
};

}  // namespace bonfire::optim
