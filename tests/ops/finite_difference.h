#pragma once
// Whether gradients are right, by comparing them with central differences in f64. Used by every gradient test:
//
//   EXPECT_TRUE(gradients_are_differences([](const auto& x) { return std::vector{sum(x[0] * x[1])}; },
//                                         {Tensor::from<double>(...), Tensor::from<double>(...)}));

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "bonfire/graph/tensor.h"

namespace bonfire::op_test {

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct DifferenceOptions {
  std::vector<bool> differentiable = {};  // which inputs; empty means every floating one
  double step = 1e-5;
  double tolerance = 1e-6;  // relative to the gradient, or to 1 when that is larger
  int most_elements = 48;   // of an input that are each moved alone; of larger ones a sample, and random directions
};

// What is differentiated is the sum of all floating outputs, each weighted with fixed random numbers. Inputs are f64
// (or integers). The random state is reset before each evaluation, so random ops may take part.
::testing::AssertionResult gradients_are_differences(const TensorFunction& function, const std::vector<Tensor>& inputs,
                                                     const DifferenceOptions& options = {});

// The same for the gradients themselves: checks second derivatives.
::testing::AssertionResult second_gradients_are_differences(const TensorFunction& function,
                                                            const std::vector<Tensor>& inputs,
                                                            const DifferenceOptions& options = {});

}  // namespace bonfire::op_test
