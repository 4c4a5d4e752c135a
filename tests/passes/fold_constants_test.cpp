#include "bonfire/passes/fold_constants.h"

#include <gtest/gtest.h>

#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fold_constants_test {
namespace {

void fold(Graph& graph) {
  fold_constants()->run(graph, {});
  dead_code()->run(graph, {});
  verify(graph, "fold_constants");
}

TEST(FoldConstants, EvaluatesOpsOnWholeNumbers) {
  Graph graph;
  GraphValue three = apply(graph, "add", {constant(graph, 1, {2, 2}), constant(graph, 2, {2})});
  graph.set_outputs({apply(graph, "mul", {three, three})});
  fold(graph);
  ASSERT_EQ(count(graph, "constant"), 1);
  EXPECT_EQ(graph.outputs[0].node->attributes.integer("value"), 9);
  EXPECT_EQ(graph.outputs[0].spec().shape, (Shape{2, 2}));
}

TEST(FoldConstants, LeavesResultsThatAreNotWhole) {
  Graph graph;
  graph.set_outputs({apply(graph, "div", {constant(graph, 1, {2}), constant(graph, 3, {2})})});
  fold(graph);
  EXPECT_EQ(count(graph, "div"), 1);
}

TEST(FoldConstants, DropsMultiplicationByOneAndAdditionOfZero) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  GraphValue same = apply(graph, "mul", {constant(graph, 1, {4}), x});
  graph.set_outputs({apply(graph, "relu", {apply(graph, "add", {same, constant(graph, 0, {1})})})});
  fold(graph);
  EXPECT_EQ(graph.outputs[0].node->inputs[0], x);
}

TEST(FoldConstants, KeepsAnAdditionOfZeroThatBroadcasts) {
  Graph graph;
  GraphValue x = feed(graph, {1});
  graph.set_outputs({apply(graph, "add", {x, constant(graph, 0, {4})})});
  fold(graph);
  EXPECT_EQ(count(graph, "add"), 1);
}

}  // namespace
}  // namespace bonfire::passes::fold_constants_test
