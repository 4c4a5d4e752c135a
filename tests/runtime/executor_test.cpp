#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/autodiff/backward.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/runtime/compile.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::executor_test {
namespace {

TEST(Executor, ComputesWhatWasTraced) {
  Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
  Tensor y = x * x + 1.0;
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{2, 5, 10, 17}));
  EXPECT_EQ(sum(y).item<float>(), 34);
}

TEST(Executor, BackwardFillsTheGradientOfAVariable) {
  const float start[] = {1, 2, 3};
  Parameter w(Variable::from<float>(start, {3}));
  Tensor loss = sum(square(w.value()));
  loss.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{2, 4, 6}));
}

TEST(Executor, GradientsAddUpUntilTheyAreCleared) {
  const float start[] = {1, 2, 3};
  Parameter w(Variable::from<float>(start, {3}));
  for (int i = 0; i < 2; ++i) sum(square(w.value())).backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{4, 8, 12}));
  w.clear_grad();
  sum(w.value()).backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{1, 1, 1}));
}

TEST(Executor, AnUpdateLeavesAHeldOldVersionAlone) {
  const float start[] = {1, 2, 3};
  Variable w = Variable::from<float>(start, {3});
  Tensor before = w.value();
  w.assign(w.value() * 2.0);
  commit();
  EXPECT_EQ(w.value().to_vector<float>(), (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(before.to_vector<float>(), (std::vector<float>{1, 2, 3}));
}

TEST(Executor, VariablesCanBeSwapped) {
  const float one[] = {1, 2}, two[] = {3, 4};
  Variable a = Variable::from<float>(one, {2}), b = Variable::from<float>(two, {2});
  Tensor old = a.value();
  a.assign(b.value());
  b.assign(old);
  commit();
  EXPECT_EQ(a.value().to_vector<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(b.value().to_vector<float>(), (std::vector<float>{1, 2}));
}

TEST(Executor, ALossCanBeReadBeforeItsBackward) {
  const float start[] = {1, 2, 3};
  Parameter w(Variable::from<float>(start, {3}));
  Tensor loss = sum(exp(w.value()) * w.value());
  float value = loss.item<float>();
  EXPECT_NEAR(value, std::exp(1.F) + 2 * std::exp(2.F) + 3 * std::exp(3.F), 1e-4);
  loss.backward();
  std::vector<float> gradient = w.grad().to_vector<float>();
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(gradient[i], std::exp(start[i]) * (1 + start[i]), 1e-4);
}

TEST(PlanCache, TheSameLoopCompilesOnce) {
  runtime::clear_plan_cache();
  const float start[] = {1, 2, 3};
  Parameter w(Variable::from<float>(start, {3}));
  for (int i = 0; i < 5; ++i) {
    Tensor loss = sum(square(w.value()));
    loss.backward();
    w.assign(w.value() - w.grad() * (0.1 * i));
    commit();
    w.clear_grad();
  }
  EXPECT_EQ(runtime::cache_statistics().compiled, 1);
  EXPECT_EQ(runtime::cache_statistics().hits, 4);
}

TEST(Compile, StepsAreCheckedOpByOpWhenNumbersAre) {
  auto step = compile([](const Tensor& x) { return log(x) * 0.0F; });
  EXPECT_TRUE(std::isnan(step(Tensor::from<float>({-1}, {1})).item()));
  set_check_numbers(true);
  EXPECT_ERROR(step(Tensor::from<float>({-1}, {1})), GraphError, "[log]");
  EXPECT_EQ(step(Tensor::from<float>({1}, {1})).item(), 0);
  set_check_numbers(false);
}

TEST(Compile, TracesOnceAndSubmitsAfterwards) {
  const float start[] = {4};
  Parameter w(Variable::from<float>(start, {1}));
  Scalar rate(0.25);
  auto step = compile([&](const Tensor& x) {
    Tensor loss = sum(square(w.value() * x));
    loss.backward();
    w.assign(w.value() - w.grad() * rate);
    w.clear_grad();
    return loss;
  });
  Tensor x = Tensor::from<float>({1}, {1});
  EXPECT_EQ(step(x).item<float>(), 16);
  EXPECT_EQ(step(x).item<float>(), 4);
  rate.set(0);
  EXPECT_EQ(step(x).item<float>(), 1);
  EXPECT_EQ(step(x).item<float>(), 1);
  EXPECT_EQ(step.traced(), 1);
}

}  // namespace
}  // namespace bonfire::executor_test
