#include "bonfire/passes/fuse_bias_act.h"

#include <gtest/gtest.h>

#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fuse_bias_act_test {
namespace {

void fuse(Graph& graph, const Options& options = {}) {
  fuse_bias_act()->run(graph, options);
  dead_code()->run(graph, {});
  verify(graph, "fuse_bias_act");
}

TEST(FuseBiasAct, GivesAConvolutionItsBiasAndActivation) {
  Graph graph;
  GraphValue y = apply(graph, "conv2d", {feed(graph, {2, 3, 8, 8}), variable(graph, {4, 3, 3, 3})}, convolution());
  graph.set_outputs({apply(graph, "relu", {apply(graph, "add", {y, variable(graph, {4, 1, 1})})})});
  fuse(graph);
  EXPECT_EQ(count(graph, "conv2d_bias_act"), 1);
  EXPECT_EQ(count(graph, "conv2d") + count(graph, "add") + count(graph, "relu"), 0);
}

// With a bias it would be an addition and an activation in one kernel; without one it is not.
TEST(FuseBiasAct, LeavesTheActivationOfASumAloneWhenAskedTo) {
  for (bool has_bias : {true, false}) {
    Graph graph;
    GraphValue y = apply(graph, "conv2d", {feed(graph, {2, 3, 8, 8}), variable(graph, {4, 3, 3, 3})}, convolution());
    if (has_bias) y = apply(graph, "add", {y, variable(graph, {4, 1, 1})});
    graph.set_outputs({apply(graph, "relu", {y})});
    fuse(graph, {.fuse_elewise_add_act_ops = false});
    EXPECT_EQ(count(graph, "conv2d_bias_act"), 1);
    EXPECT_EQ(count(graph, "add"), 0);
    EXPECT_EQ(count(graph, "relu"), has_bias ? 1 : 0);
  }
}

TEST(FuseBiasAct, GivesAProductItsBias) {
  Graph graph;
  GraphValue y =
      apply(graph, "matmul", {feed(graph, {2, 3}), variable(graph, {4, 3})}, {{"transpose_a", 0}, {"transpose_b", 1}});
  graph.set_outputs({apply(graph, "add", {y, variable(graph, {4})})});
  fuse(graph);
  ASSERT_EQ(count(graph, "matmul_bias_act"), 1);
  EXPECT_EQ(graph.outputs[0].node->attributes.integer("activation"), -1);
}

TEST(FuseBiasAct, LeavesAnActivationWhoseInputIsNeededElsewhere) {
  Graph graph;
  GraphValue y =
      apply(graph, "matmul", {feed(graph, {2, 3}), variable(graph, {4, 3})}, {{"transpose_a", 0}, {"transpose_b", 1}});
  graph.set_outputs({apply(graph, "gelu", {y}), y});
  fuse(graph);
  EXPECT_EQ(count(graph, "gelu"), 1);
  EXPECT_EQ(count(graph, "matmul"), 1);
}

TEST(FuseBiasAct, AnAdditionOfAFullTensorIsNoBias) {
  Graph graph;
  GraphValue y =
      apply(graph, "matmul", {feed(graph, {2, 3}), variable(graph, {4, 3})}, {{"transpose_a", 0}, {"transpose_b", 1}});
  graph.set_outputs({apply(graph, "add", {y, feed(graph, {2, 4})})});
  fuse(graph);
  EXPECT_EQ(count(graph, "add"), 1);
}

}  // namespace
}  // namespace bonfire::passes::fuse_bias_act_test
