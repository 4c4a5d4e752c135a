// What the design decides about values, histories, gradients and versions.

#include <gtest/gtest.h>
#include <pthread.h>

#include <cmath>

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::history_test {
namespace {

Parameter parameter(std::initializer_list<float> values) {
  return Parameter(Variable::from<float>(std::span<const float>(values.begin(), values.size()),
                                         {static_cast<int64_t>(values.size())}));
}

using Floats = std::vector<float>;

TEST(History, ASecondBackwardThroughAConsumedHistoryIsAnError) {
  Parameter w = parameter({1, 2});
  Tensor loss = sum(square(w.value()));
  loss.backward();
  EXPECT_ERROR(loss.backward(), GraphError, "retain_graph");
}

TEST(History, RetainGraphAllowsASecondBackward) {
  Parameter w = parameter({1, 2});
  Tensor loss = sum(square(w.value()));
  loss.backward({.retain_graph = true});
  loss.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{4, 8}));
}

TEST(History, SurvivesCommitsUntilItsBackward) {
  Parameter w = parameter({1, 2});
  Tensor hidden = exp(w.value());
  commit();
  Tensor loss = sum(hidden * hidden);
  commit();
  loss.backward();
  Floats gradient = w.grad().to_vector<float>();
  EXPECT_NEAR(gradient[0], 2 * std::exp(2.F), 1e-4);
  EXPECT_NEAR(gradient[1], 2 * std::exp(4.F), 1e-3);
}

TEST(History, ABackwardAfterAnUpdateSeesTheVersionsOfItsForward) {
  Parameter w = parameter({3});
  Tensor loss = sum(square(w.value()));
  w.assign(w.value() * 10.0);
  commit();
  EXPECT_EQ(w.value().to_vector<float>(), (Floats{30}));
  loss.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{6}));
}

TEST(History, NoGradRecordsNone) {
  Parameter w = parameter({1});
  NoGrad no_grad;
  Tensor loss = sum(square(w.value()));
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_ERROR(loss.backward(), GraphError, "does not depend");
}

TEST(History, DetachDropsIt) {
  Parameter w = parameter({2});
  Tensor x = w.value() * 3.0;
  Tensor loss = sum(x * x.detach());
  loss.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{18}));  // 3 · (3 · 2): one factor is a constant
  EXPECT_FALSE(x.detach().requires_grad());
}

TEST(History, BackwardNeedsOneElement) {
  Parameter w = parameter({1, 2});
  EXPECT_ERROR(square(w.value()).backward(), ShapeError, "[2]");
}

TEST(History, ALeafTensorCanRequireAGradient) {
  Tensor x = Tensor::from<float>({1, 2, 3}, {3});
  x.set_requires_grad(true);
  sum(x * x).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{2, 4, 6}));
  EXPECT_ERROR((x * x).set_requires_grad(true), GraphError, "detach");
}

TEST(History, AValueUsedTwiceGetsBothGradients) {
  Parameter w = parameter({2});
  Tensor x = exp(w.value());
  sum(x + x * x).backward();
  EXPECT_NEAR(w.grad().item<float>(), std::exp(2.F) + 2 * std::exp(4.F), 1e-3);
}

TEST(History, AFrozenVariableGetsNoGradient) {
  Parameter w = parameter({2}), frozen = parameter({5});
  frozen.set_requires_grad(false);
  sum(w.value() * frozen.value()).backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{5}));
  EXPECT_FALSE(frozen.grad().defined());
}

TEST(History, SecondDerivativesWithCreateGraph) {
  Tensor x = Tensor::from<double>({0.3, 0.7}, {2});
  x.set_requires_grad(true);
  Tensor y = sum(tanh(x) * x);
  Tensor first = grad(y, std::vector<Tensor>{x}, {.create_graph = true})[0];
  Tensor second = grad(sum(first), std::vector<Tensor>{x})[0];
  std::vector<double> values = second.to_vector<double>();
  for (int i = 0; i < 2; ++i) {
    double v = i == 0 ? 0.3 : 0.7, t = std::tanh(v), s = 1 - t * t;
    EXPECT_NEAR(values[i], 2 * s - 2 * v * t * s, 1e-12);  // (x tanh x)''
  }
}

// On a stack of its own, which has some 50 bytes for each node.
TEST(History, AChainOfManyNodesIsFreedWithoutOverflowingTheStack) {
  auto make_and_free = [](void*) -> void* {
    Parameter w = parameter({1});
    Tensor x = w.value();
    for (int i = 0; i < 10'000; ++i) x = x + 1.0;
    EXPECT_EQ(x.item<float>(), 10'001);
    x = {};
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 512 * 1024), 0);
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, &attributes, make_and_free, nullptr), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

TEST(Trace, CommitsItselfWhenItGrowsTooLong) {
  Tensor x = Tensor::from<float>({0}, {1});
  uint64_t step = StepContext::current().random.step;
  NoGrad no_grad;
  for (int i = 0; i < 20'001; ++i) x = x + 1.0;
  EXPECT_GT(StepContext::current().random.step, step);
  EXPECT_EQ(x.item<float>(), 20'001);
}

TEST(Trace, ANumberMayVaryWithoutANewPlan) {
  runtime::clear_plan_cache();
  Tensor x = Tensor::from<float>({1, 2}, {2});
  for (int i = 1; i <= 3; ++i) EXPECT_EQ((x * (0.5 * i)).to_vector<float>()[1], static_cast<float>(i));
  EXPECT_EQ(runtime::cache_statistics().compiled, 1U);
}

TEST(Trace, SaysInWordsWhyAPlanWasCompiled) {
  runtime::clear_plan_cache();
  auto run = [](Shape shape) {
    std::vector<float> values(static_cast<size_t>(shape.count()), 1.F);
    return (Tensor::from<float>(values, shape) * 2.0).to_vector<float>();
  };
  run({4});
  EXPECT_NE(runtime::cache_statistics().last_reason.find("first plan"), std::string::npos);
  run({5});
  EXPECT_NE(runtime::cache_statistics().last_reason.find("input 0 was f32 [4] cpu:0 and is now f32 [5] cpu:0"),
            std::string::npos);
  Tensor x = Tensor::from<float>({1, 2, 3, 4}, {4});
  (x + 2.0).to_vector<float>();
  EXPECT_NE(runtime::cache_statistics().last_reason.find("[mul]"), std::string::npos);
}

TEST(Trace, UnrealisedValuesOfACompiledStepCannotBeRead) {
  Tensor x = Tensor::from<float>({1}, {1});
  Trace other;
  TraceScope scope(other);
  other.compiling = true;
  Tensor y = x + 1.0;
  EXPECT_ERROR(y.item<float>(), GraphError, "inside a compiled step");
}

TEST(Variable, LoadReplacesTheValueAtOnceAndHoldersKeepTheOldOne) {
  Parameter w = parameter({1, 2});
  Tensor before = w.value();
  const float fresh[] = {7, 8};
  w.load(std::as_bytes(std::span<const float>(fresh)));
  EXPECT_EQ(w.value().to_vector<float>(), (Floats{7, 8}));
  EXPECT_EQ(before.to_vector<float>(), (Floats{1, 2}));
}

TEST(Variable, ContiguousVariablesKeepTheirValues) {
  Parameter a = parameter({1, 2, 3}), b = parameter({4});
  const Variable list[] = {b, a};
  make_contiguous(list);
  EXPECT_EQ(a.value().to_vector<float>(), (Floats{1, 2, 3}));
  EXPECT_EQ(b.value().to_vector<float>(), (Floats{4}));
  EXPECT_EQ(a.state().buffer.storage, b.state().buffer.storage);
  EXPECT_LT(b.state().buffer.offset, a.state().buffer.offset);
}

TEST(Variable, AnAssignmentOfAnotherShapeIsAnError) {
  Parameter w = parameter({1, 2});
  EXPECT_ERROR(w.assign(sum(w.value())), ShapeError, "[assign]");
}

TEST(CheckNumbers, NamesTheOpAndTheModuleThatProducedNan) {
  set_check_numbers(true);
  PathScope outer("layer1");
  PathScope inner("conv");
  Tensor x = Tensor::from<float>({-1}, {1});
  EXPECT_ERROR(log(x), GraphError, "[log] in module layer1.conv");
  set_check_numbers(false);
}

TEST(PrintGraph, ShowsOpsShapesAndModulePaths) {
  Trace trace;
  TraceScope scope(trace);
  trace.compiling = true;
  PathScope path("layer2");
  PathScope block("0");
  Tensor x = Tensor::from<float>({1, 2}, {2});
  Tensor y = relu(x);
  const Value live[] = {y.value()};
  auto graph = Graph::from_trace(trace, live);
  std::string text = print_graph(*graph);
  EXPECT_NE(text.find("%1 = relu(%0) : f32 [2] cpu:0  # layer2.0"), std::string::npos) << text;
  EXPECT_NE(text.find("return %1"), std::string::npos);
  EXPECT_NE(print_graph_dot(*graph).find("n0 -> n1"), std::string::npos);
}

TEST(PrintTensor, ShowsValuesShapeAndType) {
  Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(to_string(x), "[[1, 2],\n [3, 4]] (f32 [2, 2] cpu:0)");
  std::vector<int64_t> many(100, 3);
  EXPECT_EQ(to_string(Tensor::from<int64_t>(many, {100})), "[3, 3, 3, ..., 3, 3, 3] (i64 [100] cpu:0)");
}

}  // namespace
}  // namespace bonfire::history_test
