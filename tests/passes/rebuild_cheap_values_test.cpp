#include "bonfire/passes/rebuild_cheap_values.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes {
namespace {

// x is used first and last; relu(x) early and late; in between a chain that needs neither.
struct Step {
  Graph graph;
  GraphValue x, y, late;

  explicit Step(int64_t elements, bool keep_x = true) {
    GraphValue given = feed(graph, {elements});
    x = apply(graph, "softmax", {given}, {{"axis", 0}});  // not cheap
    y = apply(graph, "relu", {x});
    GraphValue chain = apply(graph, "tanh", {y});
    for (int i = 0; i < 12; ++i) chain = apply(graph, "tanh", {chain});
    late = apply(graph, "mul", {chain, y});
    graph.outputs = {keep_x ? apply(graph, "mul", {late, x}) : late};
  }
};

TEST(RebuildCheapValues, ComputesAnActivationAgainWhenItsInputIsKeptAnyway) {
  Step step(1 << 16);
  rebuild_cheap_values()->run(step.graph, {});
  verify(step.graph, "rebuild_cheap_values");
  EXPECT_EQ(count(step.graph, "relu"), 2);
  EXPECT_TRUE(step.late.node->inputs[1].node->recomputed);
}

TEST(RebuildCheapValues, KeepsItWhenItsInputWouldHaveToBeKeptForIt) {
  Step step(1 << 16, false);
  rebuild_cheap_values()->run(step.graph, {});
  EXPECT_EQ(count(step.graph, "relu"), 1);
}

TEST(RebuildCheapValues, LeavesSmallValuesAlone) {
  Step step(16);
  rebuild_cheap_values()->run(step.graph, {});
  EXPECT_EQ(count(step.graph, "relu"), 1);
}

}  // namespace
}  // namespace bonfire::passes
