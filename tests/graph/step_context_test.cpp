// Any number of hooks at a time, in order, in this thread's steps alone; compiled steps know which there are.
#include "bonfire/graph/step_context.h"

#include <gtest/gtest.h>

#include <thread>

#include "bonfire/bonfire.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::step_context_test {
namespace {

Parameter parameter(float value) { return Parameter(Variable::from<float>({&value, 1}, {1})); }
Tensor number(float value) { return Tensor::from<float>({value}, {1}); }
StepContext& context() { return StepContext::current(); }

TEST(Hooks, AreCalledInTheOrderInWhichTheyCame) {
  std::string calls;
  Hook a = context().after_backward.add([&](std::span<const Variable>) { calls += "a"; });
  Hook b = context().after_backward.add([&](std::span<const Variable>) { calls += "b"; });
  Parameter w = parameter(1);
  sum(w.value()).backward();
  a = {};
  Hook c = context().after_backward.add([&](std::span<const Variable>) { calls += "c"; });
  sum(w.value()).backward();
  EXPECT_EQ(calls, "abbc");
}

TEST(Hooks, OneThatEndsItselfWhileItIsCalledDoesNotDisturbTheOthers) {
  std::string calls;
  Hook own = context().after_backward.add([&](std::span<const Variable>) {
    calls += "a";
    own = {};
  });
  Hook next = context().after_backward.add([&](std::span<const Variable>) { calls += "b"; });
  Parameter w = parameter(1);
  for (int i = 0; i < 2; ++i) sum(w.value()).backward();
  EXPECT_EQ(calls, "abb");
}

TEST(Hooks, OutliveTheListThatTheyWereIn) {
  Hook hook;
  {
    Hooks<void()> list;
    hook = list.add([] {});
  }
  hook = {};
}

// A weight of the loss and a scale at once.
TEST(Hooks, BeforeBackwardEachChangesWhatTheOneBeforeHasMade) {
  Parameter w = parameter(1);
  Hook plus = context().before_backward.add([](const Tensor& seed) { return seed + 2.0; });
  Hook times = context().before_backward.add([](const Tensor& seed) { return seed * 10.0; });
  sum(w.value()).backward();
  EXPECT_EQ(w.grad().item<float>(), 30);
}

TEST(Hooks, UpdatesCountWhereAllConditionsHold) {
  for (bool first : {false, true})
    for (bool second : {false, true}) {
      Parameter w = parameter(1), free = parameter(1);
      optim::Momentum optimizer(std::vector<Parameter>{w, free}, {.lr = 1, .momentum = 0.5});
      auto condition = [&](bool holds) {
        return context().update_conditions.add([&w, holds](const Variable& parameter) {
          if (&parameter.state() != &w.state()) return Tensor();
          return equal(number(holds ? 1 : 0), 1.0);
        });
      };
      const Hook one = condition(first), other = condition(second);
      (sum(w.value()) + sum(free.value())).backward();
      optimizer.step();
      EXPECT_EQ(w.value().item<float>(), first && second ? 0 : 1) << first << second;
      EXPECT_EQ(free.value().item<float>(), 0) << first << second;
    }
}

TEST(Hooks, CompiledStepsGoWithTheHooksThatThereAre) {
  Parameter w = parameter(1);
  auto backward = compile([&](const Tensor& x) { sum(w.value() * x).backward(); });
  auto gradient = [&] {
    w.clear_grad();
    backward(number(1));
    return w.grad().item<float>();
  };
  EXPECT_EQ(gradient(), 1);
  for (int round = 0; round < 2; ++round) {
    Hook times = context().before_backward.add([](const Tensor& seed) { return seed * 10.0; });
    EXPECT_EQ(gradient(), 10);
    Hook again = context().before_backward.add([](const Tensor& seed) { return seed * 2.0; });
    EXPECT_EQ(gradient(), 20);
    times = {};
    EXPECT_EQ(gradient(), 2);
    again = {};
    EXPECT_EQ(gradient(), 1);
  }
  EXPECT_EQ(backward.traced(), 7);  // each hook is another; without any it is the first again
}

TEST(Hooks, AllHearOfAFailure) {
  std::string heard;
  Hook a = context().after_failure.add([&](const std::string& why) { heard += "a " + why + ", "; });
  Hook b = context().after_failure.add([&](const std::string& why) { heard += "b " + why; });
  context().tell_failure("no");
  EXPECT_EQ(heard, "a no, b no");
}

TEST(StepContext, IsEachThreadsOwn) {
  int calls = 0;
  Hook hook = context().after_backward.add([&](std::span<const Variable>) { ++calls; });
  use_mixed_precision();
  std::thread([&] {
    EXPECT_FALSE(uses_mixed_precision());
    Parameter w = parameter(1);
    sum(w.value()).backward();
    EXPECT_EQ(w.grad().item<float>(), 1);
  }).join();
  EXPECT_TRUE(uses_mixed_precision());
  use_mixed_precision(false);
  EXPECT_EQ(calls, 0);
}

TEST(StepContext, ItsMeshIsPartOfACompiledStepsKey) {
  auto step = compile([](const Tensor& x) { return x + 1.0; });
  step(number(1));
  context().mesh = Mesh::of(1, 2, {});
  step(number(1));
  context().mesh = Mesh::of(1, 2, {.tensor = 2});
  step(number(1));
  context().mesh = {};
  step(number(1));
  EXPECT_EQ(step.traced(), 3);
}

TEST(StepContext, AChangedMeshIsNamedAsTheReasonForANewPlan) {
  runtime::clear_plan_cache();
  auto run = [] { (number(1) + 1.0).item<float>(); };
  run();
  context().mesh = Mesh::of(1, 4, {.tensor = 2});
  run();
  EXPECT_EQ(runtime::cache_statistics().last_reason, "the mesh was one rank and is now rank 1 of data 2 × tensor 2");
  context().mesh = Mesh::of(2, 4, {.tensor = 2});
  run();
  EXPECT_EQ(runtime::cache_statistics().compiled, 3U);
  context().mesh = {};
  run();
  EXPECT_EQ(runtime::cache_statistics().compiled, 3U);
}

}  // namespace
}  // namespace bonfire::step_context_test
