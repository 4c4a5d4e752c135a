#include "bonfire/passes/common_subexpressions.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes::common_subexpressions_test {
namespace {

TEST(CommonSubexpressions, MergesEqualNodesAndTheirUsers) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  GraphValue a = apply(graph, "exp", {apply(graph, "relu", {x})}), b = apply(graph, "exp", {apply(graph, "relu", {x})});
  graph.set_outputs({apply(graph, "add", {a, b})});
  common_subexpressions()->run(graph, {});
  verify(graph, "common_subexpressions");
  EXPECT_EQ(count(graph, "relu"), 1);
  EXPECT_EQ(count(graph, "exp"), 1);
}

TEST(CommonSubexpressions, KeepsNodesThatDifferInAttributes) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  graph.set_outputs(
      {apply(graph, "cast", {x}, {{"dtype", DType::bf16}}), apply(graph, "cast", {x}, {{"dtype", DType::f64}})});
  common_subexpressions()->run(graph, {});
  EXPECT_EQ(count(graph, "cast"), 2);
}

TEST(CommonSubexpressions, NeverMergesRecomputedNodes) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  GraphValue a = apply(graph, "exp", {x}), b = apply(graph, "exp", {x});
  b.node->recomputed = true;
  graph.set_outputs({a, b});
  common_subexpressions()->run(graph, {});
  EXPECT_EQ(count(graph, "exp"), 2);
}

TEST(CommonSubexpressions, NeverMergesRandomNodes) {
  static const Op& coin =
      register_op({.name = "coin_for_test",
                   .infer = [](const InferContext& context) { return OutputSpecs{context.input(0)}; },
                   .traits = Trait::random});
  Graph graph;
  GraphValue x = feed(graph, {4});
  graph.set_outputs({{graph.add(coin, {x}), 0}, {graph.add(coin, {x}), 0}});
  common_subexpressions()->run(graph, {});
  EXPECT_EQ(count(graph, "coin_for_test"), 2);
}

}  // namespace
}  // namespace bonfire::passes::common_subexpressions_test
