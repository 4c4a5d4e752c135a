// Optimizers of parameters of which a slice is here.

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/optim/optimizers.h"
#include "tests/support/expect_error.h"

namespace bonfire::optim::slices_test {
namespace {

using Bytes = std::vector<std::byte>;

Parameter parameter(const Shape& shape) {
  Variable variable({shape, DType::f32, {}}, "w");
  variable.set_first_values(first_values([](int64_t i) { return 0.1F * static_cast<float>(i) - 1; }));
  return Parameter(variable);
}

const std::vector<Slice>& slices() {
  static const std::vector<Slice> all = {Slice::part({6, 4}, 0, 1, 2), Slice::part({6, 4}, 1, 0, 3),
                                         Slice::part({6, 4}, 0, 1, 2, 3), Slice::range({6, 4}, 5, 17),
                                         Slice::range({6, 4}, 3, 20, {.order = {1, 0}})};
  return all;
}

// What is here of the parameter and of the optimizer's state after three steps, whose gradient is 2 (w − 3).
template <class Optimizer, class Options>
std::vector<Bytes> trained(const Slice& slice, const Options& options, bool late) {
  Parameter w = parameter({6, 4});
  if (!late) w.keep_slice(slice);
  Optimizer optimizer(std::vector{w}, options);
  if (late) optimizer.keep_slice(w, slice);
  for (int step = 0; step < 3; ++step) {
    sum(square(w.stored() - 3.0)).backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  std::vector<Bytes> values = {w.save_stored()};
  for (const auto& [name, variable] : optimizer.state())
    if (variable.shape() == w.shape()) values.push_back(variable.save_stored());
  return values;
}

template <class Optimizer, class Options>
void expect_the_same_part(const Options& options) {
  const Slice whole({6, 4});
  const std::vector<Bytes> all = trained<Optimizer>(whole, options, false);
  for (const Slice& slice : slices()) {
    SCOPED_TRACE(to_string(slice));
    std::vector<Bytes> expected;
    for (const Bytes& values : all) {
      Bytes& part = expected.emplace_back(static_cast<size_t>(slice.count()) * sizeof(float));
      copy_overlaps(overlaps(whole, slice), sizeof(float), values.data(), part.data());
    }
    EXPECT_EQ(trained<Optimizer>(slice, options, false), expected);
    EXPECT_EQ(trained<Optimizer>(slice, options, true), expected);
  }
}

TEST(OptimizerOfSlices, UpdatesEachElementAsThatOfTheWhole) {
  expect_the_same_part<SGD>(SGDOptions{.lr = 0.1, .weight_decay = 0.01});
  expect_the_same_part<Momentum>(MomentumOptions{.lr = 0.1, .momentum = 0.9});
  expect_the_same_part<Adagrad>(AdagradOptions{.lr = 0.1, .initial_accumulator_value = 0.3});
  expect_the_same_part<Adam>(AdamOptions{.lr = 0.1});
  expect_the_same_part<AdamW>(AdamWOptions{.lr = 0.1, .weight_decay = 0.1});
}

TEST(OptimizerOfSlices, TrustRatiosAreOfWholeParameters) {
  Parameter w = parameter({6, 4});
  w.keep_slice(slices()[0]);
  LAMB optimizer(std::vector{w}, {.lr = 0.1});
  sum(w.stored()).backward();
  EXPECT_ERROR(optimizer.step(), GraphError, "variable w.grad is whole in this step");
}

TEST(OptimizerOfSlices, OnlyItsOwnParametersAreCut) {
  Parameter w = parameter({6, 4}), other = parameter({6, 4});
  Adam optimizer(std::vector{w}, {});
  EXPECT_ERROR(optimizer.keep_slice(other, slices()[0]), ConfigError, "w is no parameter that this optimizer updates");
}

}  // namespace
}  // namespace bonfire::optim::slices_test
