#pragma once
// Activations and other layers without parameters, as modules, to stand in a Sequential. Elsewhere call the op.

#include "bonfire/nn/module.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::nn {

class Activation : public Callable<Activation> {
 public:
  Activation(const char* kind, Tensor (*function)(const Tensor&), std::string details = {})
      : Callable(kind), function_(function) {
    set_details(std::move(details));
  }
  Tensor forward(const Tensor& x) const { return function_(x); }

 private:
  Tensor (*function_)(const Tensor&);
};

// Every step is computed in place wherever that is safe, whatever this says: only the tree shows it, as PyTorch's does.
struct ReLUOptions {
  bool inplace = false;
};
struct ReLU : Activation {
  explicit ReLU(const ReLUOptions& options = {}) : Activation("ReLU", relu, options.inplace ? "inplace=True" : "") {}
};
struct Tanh : Activation {
  Tanh() : Activation("Tanh", tanh) {}
};
struct Sigmoid : Activation {
  Sigmoid() : Activation("Sigmoid", sigmoid) {}
};
struct GELU : Activation {
  GELU() : Activation("GELU", gelu, "approximate='none'") {}
};
struct SiLU : Activation {
  SiLU() : Activation("SiLU", silu) {}
};
struct Identity : Activation {
  Identity()
      : Activation("Identity", [](const Tensor& x) {
          require_defined("identity", {{"x", x}});
          return x;
        }) {}
};

// Only in training mode.
class Dropout : public Callable<Dropout> {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) const;

 private:
  double p_;
};

// Axes first … last become one.
class Flatten : public Callable<Flatten> {
 public:
  explicit Flatten(int64_t first = 1, int64_t last = -1);
  Tensor forward(const Tensor& x) const;

 private:
  int64_t first_, last_;
};

}  // namespace bonfire::nn
