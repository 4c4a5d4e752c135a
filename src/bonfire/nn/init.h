#pragma once
// First values of parameters, by PyTorch's formulas. Numbers are counter-based (base/random.h): the k-th parameter that
// is drawn after manual_seed(seed) is a pure function of (seed, k), whatever the device and the threads.
//
//   nn::Linear fc({.in = 320, .out = 10, .weight_init = nn::init::normal(0.01), .bias_init = nn::init::zeros()});

#include <cmath>
#include <functional>

#include "bonfire/graph/variable.h"

namespace bonfire::nn::init {

// Gives a variable its first values. Those below set a rule (Variable::set_first_values) that is followed when the
// variable is first used; seed and k are those of now. One of a program's own may as well load values at once.
using Rule = std::function<void(const Variable&)>;

Rule zeros();
Rule ones();
Rule constant(double number);
Rule uniform(double low, double high);  // [low, high)
Rule normal(double deviation, double mean = 0);

// Uniform within ±√(6 / (1 + a²) / fan_in). With a = √5, which is 1 / √fan_in, PyTorch begins Linear and convolutions.
Rule kaiming_uniform(double a = std::sqrt(5.0));
// The bias that goes with a weight of this shape: uniform within ±1 / √fan_in.
Rule bias_of(const Shape& weight);

// Normal with deviation √(2 / fan_out): what torchvision's convolutions begin with.
Rule kaiming_normal_fan_out();

// Uniform within ±√(6 / (fan_in + fan_out)).
Rule xavier_uniform();

// By that rule, but for one row, which is zero.
Rule with_zero_row(Rule rule, int64_t row);

// While one lives, modules made on this thread draw no numbers and leave those parameters at zero: for models that are
// loaded at once.
class Skip {
 public:
  Skip();
  ~Skip();
  Skip(const Skip&) = delete;
  Skip& operator=(const Skip&) = delete;

 private:
  bool before_;
};

// The rule a user chose, or the layer's own when it is empty; nothing inside a Skip.
void apply(const Rule& chosen, const Rule& usual, const Variable& variable);

// How many values go into, and come out of, one element of the other side: shape [out, in, window…].
struct Fans {
  int64_t in, out;
};
Fans fans_of(const Shape& shape);  // ShapeError below rank 2

}  // namespace bonfire::nn::init
