#include "bonfire/passes/rebuild_cheap_values.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes::rebuild_cheap_values_test {
namespace {

// Everything that reads it, from now on, is of the backward pass.
GraphValue turn(GraphValue value) {
  value.node->phase = Phase::backward;
  return value;
}

// x is used first and last; relu(x) in the forward and in the backward pass.
struct Step {
  Graph graph;
  GraphValue x, y, late;

  explicit Step(int64_t elements, bool keep_x = true, bool with_backward = true) {
    GraphValue given = feed(graph, {elements});
    x = apply(graph, "softmax", {given}, {{"axis", 0}});  // not cheap
    y = apply(graph, "relu", {x});
    GraphValue gradient = apply(graph, "tanh", {apply(graph, "tanh", {y})});
    late = apply(graph, "mul", {with_backward ? turn(gradient) : gradient, y});
    graph.set_outputs({keep_x ? apply(graph, "mul", {late, x}) : late});
  }
};

TEST(RebuildCheapValues, ComputesAnActivationAgainWhenItsInputIsKeptAnyway) {
  Step step(1 << 16);
  rebuild_cheap_values()->run(step.graph, {});
  verify(step.graph, "rebuild_cheap_values");
  EXPECT_EQ(count(step.graph, "relu"), 2);
  EXPECT_TRUE(step.late.node->inputs[1].node->recomputed);
  EXPECT_EQ(step.late.node->inputs[1].node->phase, Phase::backward);
}

TEST(RebuildCheapValues, KeepsItWhenItsInputWouldHaveToBeKeptForIt) {
  Step step(1 << 16, false);
  rebuild_cheap_values()->run(step.graph, {});
  EXPECT_EQ(count(step.graph, "relu"), 1);
}

TEST(RebuildCheapValues, KeepsWhatOnlyTheForwardPassUses) {
  Step step(1 << 16, true, false);
  rebuild_cheap_values()->run(step.graph, {});
  EXPECT_EQ(count(step.graph, "relu"), 1);
}

TEST(RebuildCheapValues, LeavesSmallValuesAlone) {
  Step step(16);
  rebuild_cheap_values()->run(step.graph, {});
  EXPECT_EQ(count(step.graph, "relu"), 1);
}

// How often a value is computed that is made of one kept value of that size and a small variable, as batch norm's are.
int times_computed(int64_t elements, Device device) {
  Graph graph;
  GraphValue x = apply(graph, "softmax", {feed(graph, {elements, 1}, DType::f32, device)}, {{"axis", 0}});
  GraphValue scale{graph.add_input(LeafKind::variable, {{1, 1}, DType::f32, device}), 0};
  GraphValue y = apply(graph, "mul", {x, scale});
  GraphValue gradient = turn(apply(graph, "tanh", {apply(graph, "tanh", {y})}));
  graph.set_outputs({apply(graph, "mul", {apply(graph, "mul", {gradient, y}), x})});
  rebuild_cheap_values()->run(graph, {});
  return count(graph, "mul") - 2;
}

TEST(RebuildCheapValues, ReadsSmallVariablesAgainForLargeValuesOnly) {
  EXPECT_EQ(times_computed(1 << 21, {}), 2);
  EXPECT_EQ(times_computed(1 << 18, {}), 1);
}

TEST(RebuildCheapValues, ReadsNoVariablesAgainWhereKeepingValuesIsNotDear) {
  EXPECT_EQ(times_computed(1 << 21, kGpu), 1);
}

}  // namespace
}  // namespace bonfire::passes::rebuild_cheap_values_test
