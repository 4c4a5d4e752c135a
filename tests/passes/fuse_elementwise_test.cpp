#include "bonfire/passes/fuse_elementwise.h"

#include <gtest/gtest.h>

#include "bonfire/ops/elementwise_program.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fuse_elementwise_test {
namespace {

TEST(FuseElementwise, MakesOneKernelOfAChain) {
  Graph graph;
  GraphValue x = feed(graph, {4, 8}), bias = feed(graph, {8});
  graph.set_outputs({apply(graph, "tanh", {apply(graph, "mul", {apply(graph, "add", {x, bias}), x})})});
  fuse_elementwise()->run(graph, {});
  verify(graph, "fuse_elementwise");
  ASSERT_EQ(count(graph, "fused_elementwise"), 1);
  const GraphNode& node = *graph.outputs[0].node;
  EXPECT_EQ(node.inputs.size(), 2U);
  EXPECT_EQ(program_of(node).instructions.size(), 3U);
}

TEST(FuseElementwise, KeepsAValueThatOthersUse) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  GraphValue shared = apply(graph, "exp", {x});
  graph.set_outputs({apply(graph, "relu", {shared}), shared});
  fuse_elementwise()->run(graph, {});
  EXPECT_EQ(count(graph, "fused_elementwise"), 0);
}

TEST(FuseElementwise, DoesNotMixComputeTypes) {
  Graph graph;
  GraphValue i = feed(graph, {4}, DType::i64), x = feed(graph, {4});
  graph.set_outputs({apply(graph, "add", {apply(graph, "add", {i, i}), x})});
  fuse_elementwise()->run(graph, {});
  EXPECT_EQ(count(graph, "add"), 2);
}

TEST(FuseElementwise, StopsWhereShapesChange) {
  Graph graph;
  GraphValue x = feed(graph, {4, 8}), row = feed(graph, {8});
  graph.set_outputs({apply(graph, "add", {x, apply(graph, "exp", {row})})});
  fuse_elementwise()->run(graph, {});
  EXPECT_EQ(count(graph, "exp"), 1);
}

TEST(FuseElementwise, IsOffWhenTheOptionIs) {
  Graph graph;
  graph.set_outputs({apply(graph, "relu", {apply(graph, "exp", {feed(graph, {4})})})});
  fuse_elementwise()->run(graph, {.fuse_elementwise = false});
  EXPECT_EQ(count(graph, "exp"), 1);
}

// An addition at the end of one chain and the activation at the beginning of another stay apart too.
TEST(FuseElementwise, LeavesActivationsApartFromAdditionsWhenAskedTo) {
  for (bool fused : {true, false}) {
    Graph graph;
    GraphValue x = feed(graph, {4}), y = feed(graph, {4});
    GraphValue sum = apply(graph, "add", {apply(graph, "mul", {x, y}), y});
    graph.set_outputs({apply(graph, "exp", {apply(graph, "relu", {sum})})});
    fuse_elementwise()->run(graph, {.fuse_elewise_add_act_ops = fused});
    verify(graph, "fuse_elementwise");
    EXPECT_EQ(count(graph, "fused_elementwise"), fused ? 1 : 2);
    EXPECT_EQ(graph.nodes().size(), fused ? 3U : 4U);
  }
}

}  // namespace
}  // namespace bonfire::passes::fuse_elementwise_test
