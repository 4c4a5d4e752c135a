#include "bonfire/optim/weight_average.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bonfire/nn/linear.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/optim/optimizers.h"

namespace bonfire::optim::weight_average_test {
namespace {

// Two layers with the same weights, which have two names.
class Twice : public nn::Callable<Twice> {
 public:
  Twice() : Callable("Twice") {}
  Tensor forward(const Tensor& x) const { return second_(first_(x)); }
  const nn::Linear& layer() const { return first_; }

 private:
  nn::Linear first_ = register_module("first", nn::Linear({.in = 3, .out = 3}));
  nn::Linear second_ = register_module("second", nn::Linear(first_.weight, first_.bias));
};

std::vector<float> values_of(const Variable& variable) { return variable.value().to_vector<float>(); }

TEST(WeightAverage, FollowsEachWeightOnceAStepHoweverManyNamesItHas) {
  constexpr double kDecay = 0.9;
  Twice model;
  ASSERT_EQ(model.state_dict().size(), 4U);
  SGD optimizer(model.parameters(), {.lr = 0.1});
  WeightAverage average(model, optimizer, kDecay);
  std::vector<float> expected = values_of(model.layer().weight);
  for (int step = 0; step < 4; ++step) {
    average.set_step(step);
    sum(model(Tensor::from<float>({1, 2, 3}, {1, 3}))).backward();
    optimizer.step();
    optimizer.clear_grad();
    const double share = 1 - std::min(kDecay, (1.0 + step) / (10.0 + step));
    const std::vector<float> now = values_of(model.layer().weight);
    for (size_t i = 0; i < now.size(); ++i) expected[i] += (now[i] - expected[i]) * static_cast<float>(share);
  }
  for (const auto& [name, mean] : average.state()) {
    if (!name.ends_with("weight")) continue;
    const std::vector<float> values = values_of(mean);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-6) << name;
  }
}

}  // namespace
}  // namespace bonfire::optim::weight_average_test
