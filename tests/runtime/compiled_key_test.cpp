// What compile() has traced serves only calls that would trace the same again.
#include <gtest/gtest.h>

#include "bonfire/autodiff/backward.h"
#include "bonfire/bonfire.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::compiled_key_test {
namespace {

using Parameters = std::vector<Parameter>;

Parameter parameter(std::initializer_list<float> values) {
  return Parameter(Variable::from<float>(std::span<const float>(values.begin(), values.size()),
                                         {static_cast<int64_t>(values.size())}));
}

Tensor number(float value) { return Tensor::from<float>({value}, {1}); }

TEST(CompiledKey, GradientsAddUpUntilTheyAreCleared) {
  Parameter w = parameter({1});
  auto backward = compile([&](const Tensor& x) { sum(w.value() * x).backward(); });
  for (int round = 0; round < 3; ++round) {
    for (float x : {1.0F, 10.0F, 100.0F}) backward(number(x));
    EXPECT_EQ(w.grad().item<float>(), 111) << "in round " << round;
    w.clear_grad();
    EXPECT_FALSE(w.grad().defined());
  }
  EXPECT_EQ(backward.traced(), 2);  // one that writes, one that adds
}

// Their gradients would be written anew by each call, whether they were read or not.
TEST(CompiledKey, TensorsFromOutsideGetNoGradients) {
  Tensor w = number(1);
  auto backward = compile([&](const Tensor& x) {
    Tensor inside = x.detach();
    inside.set_requires_grad(true);
    sum(w * square(inside)).backward();
    return inside.grad();
  });
  EXPECT_EQ(backward(number(3)).item<float>(), 6);
  w.set_requires_grad(true);
  EXPECT_ERROR(backward(number(3)), GraphError, "no gradient to a tensor from outside that is no variable (f32 [1]");
  w.set_requires_grad(false);
  EXPECT_EQ(backward(number(4)).item<float>(), 8);
}

TEST(CompiledKey, UpdatesOutsideFindTheGradientsOfEachCall) {
  Parameter compiled = parameter({1}), traced = parameter({1});
  optim::SGD optimizer(Parameters{compiled}, {.lr = 0.25}), reference(Parameters{traced}, {.lr = 0.25});
  auto backward = compile([&](const Tensor& x) {
    Tensor loss = sum(square(compiled.value() - x));
    loss.backward();
    return loss;
  });
  for (int step = 0; step < 6; ++step) {
    Tensor x = number(static_cast<float>(step));
    Tensor loss = backward(x), expected = sum(square(traced.value() - x));
    expected.backward();
    EXPECT_EQ(loss.item<float>(), expected.item<float>()) << step;
    optimizer.step();
    optimizer.clear_grad();
    reference.step();
    reference.clear_grad();
    EXPECT_EQ(compiled.value().item<float>(), traced.value().item<float>()) << step;
  }
  EXPECT_EQ(backward.traced(), 1);
}

TEST(CompiledKey, GradientsClearedInsideAreClearAfterEachCall) {
  Parameter w = parameter({2});
  auto step = compile([&](const Tensor& x) {
    w.clear_grad();
    sum(w.value() * x).backward();
    Tensor gradient = w.grad();
    w.clear_grad();
    return gradient + 0.0;
  });
  for (float x : {3.0F, 4.0F}) {
    EXPECT_EQ(step(number(x)).item<float>(), x);
    EXPECT_FALSE(w.grad().defined());
    sum(w.value()).backward();  // leaves a gradient, which the next call does not look at
  }
  EXPECT_EQ(step.traced(), 1);
}

TEST(CompiledKey, EvaluationModeIsAnotherStep) {
  nn::Dropout dropout(0.5);
  auto step = compile([&](const Tensor& x) { return dropout(x); });
  Tensor x = ones({64});
  auto kept = [&] { return sum(equal(step(x), 1.0).to(DType::f32)).item<float>(); };
  EXPECT_EQ(kept(), 0) << "what is kept in training is scaled to 2";
  dropout.eval();
  EXPECT_EQ(kept(), 64);
  dropout.train();
  EXPECT_EQ(kept(), 0);
  EXPECT_EQ(step.traced(), 2);
}

TEST(CompiledKey, AModeThatTheStepItselfSetsIsSetByEachCall) {
  nn::Dropout dropout(0.5);
  auto step = compile([&](const Tensor& x) {
    dropout.eval();
    return dropout(x);
  });
  for (int call = 0; call < 2; ++call) {
    dropout.train();
    EXPECT_EQ(sum(step(ones({8}))).item<float>(), 8);
    EXPECT_FALSE(dropout.training());
  }
  EXPECT_EQ(step.traced(), 1);
}

TEST(CompiledKey, MixedPrecisionIsAnotherStep) {
  Parameter w(Variable::from<float>(std::vector<float>(64 * 64, 1.001F), {64, 64}));
  auto step = compile([&](const Tensor& x) { return matmul(x, w.value()); });
  Tensor x = ones({64, 64});
  auto first = [&] { return step(x).to_vector<float>()[0]; };
  const float exact = first();
  use_mixed_precision(true);
  const float rounded = first();
  use_mixed_precision(false);
  EXPECT_NEAR(exact, 64 * 1.001, 1e-4);
  EXPECT_EQ(rounded, 64) << "1.001 is 1 in bf16";
  EXPECT_EQ(first(), exact);
}

TEST(CompiledKey, FrozenParametersGetNoGradient) {
  Parameter a = parameter({1}), b = parameter({1});
  auto backward = compile([&](const Tensor& x) { sum(a.value() * x + b.value() * x).backward(); });
  backward(number(1));
  b.set_requires_grad(false);
  backward(number(10));
  b.set_requires_grad(true);
  backward(number(100));
  EXPECT_EQ(a.grad().item<float>(), 111);
  EXPECT_EQ(b.grad().item<float>(), 101);
}

TEST(CompiledKey, NoGradIsAnotherStep) {
  Parameter w = parameter({1});
  auto step = compile([&](const Tensor& x) {
    Tensor y = sum(w.value() * x);
    if (y.requires_grad()) y.backward();
    return y;
  });
  {
    NoGrad no_grad;
    step(number(1));
    EXPECT_FALSE(w.grad().defined());
  }
  step(number(10));
  EXPECT_EQ(w.grad().item<float>(), 10);
}

TEST(CompiledKey, AnotherLossWeightIsAnotherStep) {
  Parameter w = parameter({1});
  auto backward = compile([&](const Tensor& x) { sum(w.value() * x).backward(); });
  backward(number(1));
  auto times = [](double weight) {
    return StepContext::current().before_backward.add([=](const Tensor& seed) { return seed * weight; });
  };
  Hook weight = times(10);
  backward(number(1));
  weight = {};
  weight = times(100);
  backward(number(1));
  EXPECT_EQ(w.grad().item<float>(), 111);
}

TEST(CompiledKey, AHookOfTheOptimizerSetLaterIsCalled) {
  Parameter w = parameter({1});
  optim::SGD optimizer(Parameters{w}, {.lr = 1});
  auto step = compile([&](const Tensor& x) {
    sum(w.value() * x).backward();
    optimizer.step();
    optimizer.clear_grad();
  });
  step(number(1));
  const Hook doubling =
      StepContext::current().after_update.add([&](const optim::Optimizer&) { w.assign(w.value() * 2.0); });
  step(number(1));
  EXPECT_EQ(w.value().item<float>(), -2);
}

TEST(CompiledKey, AStepThatCannotBeTracedLeavesEverythingAsItWas) {
  Parameter w = parameter({1});
  bool fail = true;
  auto backward = compile([&](const Tensor& x) {
    sum(w.value() * x).backward();
    if (fail) throw_error<ConfigError>("no");
  });
  EXPECT_ERROR(backward(number(1)), ConfigError, "no");
  EXPECT_FALSE(w.grad().defined());
  fail = false;
  backward(number(10));
  EXPECT_EQ(w.grad().item<float>(), 10);
}

TEST(CompiledKey, AVariableMovedAwayAndBackIsFoundAsItLies) {
  nn::Conv2d conv({.in = 8, .out = 16, .kernel = {3}});
  std::vector<float> pixels(4 * 8 * 12 * 12);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = normal_at(1, 1, i);
  auto on = [&](Device device) { return Tensor::from<float>(pixels, {4, 8, 12, 12}, device); };
  auto step = compile([&](const Tensor& x) { return sum(square(conv(x))); });
  const float before = step(on({})).item<float>();
  const Device other{DeviceType::cpu, 1};
  conv.to(other);
  EXPECT_NEAR(step(on(other)).item<float>(), before, 1e-3 * before);
  conv.to({});
  EXPECT_NEAR(step(on({})).item<float>(), before, 1e-3 * before);
}

TEST(CompiledKey, ACompiledStepInsideAnotherIsAPartOfIt) {
  Parameter w = parameter({3});
  auto inner = compile([&](const Tensor& x) { return w.value() * x; });
  auto outer = compile([&](const Tensor& x) {
    Tensor loss = sum(inner(x));
    loss.backward();
    return loss;
  });
  EXPECT_EQ(outer(number(2)).item<float>(), 6);
  EXPECT_EQ(outer(number(5)).item<float>(), 15);
  EXPECT_EQ(w.grad().item<float>(), 7);
}

TEST(CompiledKey, ArgumentsMayBeVariables) {
  Parameter w = parameter({3});
  auto twice = compile([](const Tensor& x) { return x * 2.0; });
  EXPECT_EQ(twice(w.value()).item<float>(), 6);
  w.assign(number(4));
  EXPECT_EQ(twice(w.value()).item<float>(), 8);
}

TEST(CompiledKey, ArgumentsThatCannotBeAreErrors) {
  auto twice = compile([](const Tensor& x) { return x * 2.0; });
  EXPECT_ERROR(twice(Tensor()), GraphError, "argument 0 of the step is an undefined tensor");
  Parameter w = parameter({3});
  EXPECT_ERROR(twice(w.value() * 1.0), GraphError, "detach()");
}

TEST(CompiledKey, StepsOfInputsThatNoLongerComeAreDropped) {
  auto twice = compile([](const Tensor& x) { return x * 2.0; });
  for (int64_t length = 1; length <= 5000; ++length) twice(ones({length}));
  EXPECT_EQ(twice.traced(), 5000);
  EXPECT_LE(twice.kept(), static_cast<int>(runtime::kDropAfter) + 100);
  EXPECT_EQ(sum(twice(ones({3}))).item<float>(), 6);
  EXPECT_EQ(twice.traced(), 5001);
}

}  // namespace
}  // namespace bonfire::compiled_key_test
