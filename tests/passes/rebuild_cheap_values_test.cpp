#include "bonfire/passes/rebuild_cheap_values.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes::rebuild_cheap_values_test {
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
    graph.set_outputs({keep_x ? apply(graph, "mul", {late, x}) : late});
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

// A large value that is made of one kept large value and a small variable, as batch norm's are.
TEST(RebuildCheapValues, ReadsSmallVariablesAgainForLargeValuesOnly) {
  for (int64_t elements : {int64_t{1} << 21, int64_t{1} << 18}) {
    Graph graph;
    GraphValue x = apply(graph, "softmax", {feed(graph, {elements, 1})}, {{"axis", 0}});
    GraphValue scale{graph.add_input(LeafKind::variable, {{1, 1}, DType::f32, {}}), 0};
    GraphValue y = apply(graph, "mul", {x, scale});
    GraphValue chain = apply(graph, "tanh", {y});
    for (int i = 0; i < 12; ++i) chain = apply(graph, "tanh", {chain});
    graph.set_outputs({apply(graph, "mul", {apply(graph, "mul", {chain, y}), x})});
    rebuild_cheap_values()->run(graph, {});
    EXPECT_EQ(count(graph, "mul"), elements == int64_t{1} << 21 ? 4 : 3);
  }
}

}  // namespace
}  // namespace bonfire::passes::rebuild_cheap_values_test
