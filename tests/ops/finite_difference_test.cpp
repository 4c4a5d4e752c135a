// The check of gradients must itself be able to fail.

#include "tests/ops/finite_difference.h"

#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::op_test::finite_difference_test {
namespace {

Tensor numbers(int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(0.5 + 0.01 * static_cast<double>(i));
  return Tensor::from<double>(values, {count});
}

using Inputs = std::vector<Tensor>;

std::vector<Tensor> cube(const Inputs& x) { return {x[0] * x[0] * x[0]}; }
// detach() hides one factor from the gradient, but not from the difference.
std::vector<Tensor> cube_with_a_hidden_factor(const Inputs& x) { return {x[0] * x[0] * x[0].detach()}; }

TEST(FiniteDifference, AcceptsRightGradients) {
  for (int64_t count : {1, 5, 200}) {
    EXPECT_TRUE(gradients_are_differences(cube, {numbers(count)})) << count;
    EXPECT_TRUE(second_gradients_are_differences(cube, {numbers(count)})) << count;
  }
}

TEST(FiniteDifference, RejectsWrongGradients) {
  for (int64_t count : {1, 5, 200}) {
    EXPECT_FALSE(gradients_are_differences(cube_with_a_hidden_factor, {numbers(count)})) << count;
    EXPECT_FALSE(second_gradients_are_differences(cube_with_a_hidden_factor, {numbers(count)})) << count;
  }
}

TEST(FiniteDifference, RejectsOneWrongElementOfMany) {
  auto function = [](const Inputs& x) -> std::vector<Tensor> {
    Tensor last = greater(x[0], 2.485);  // the last of 200
    return {where(last, x[0] * x[0].detach(), square(x[0]))};
  };
  EXPECT_FALSE(gradients_are_differences(function, {numbers(200)}));
}

TEST(FiniteDifference, RejectsAGradientThatIsMissing) {
  auto function = [](const Inputs& x) -> std::vector<Tensor> { return {x[0] + x[1].detach()}; };
  EXPECT_FALSE(gradients_are_differences(function, {numbers(3), numbers(3)}));
  EXPECT_TRUE(gradients_are_differences(function, {numbers(3), numbers(3)}, {.differentiable = {true, false}}));
}

}  // namespace
}  // namespace bonfire::op_test::finite_difference_test
