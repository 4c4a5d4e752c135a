#include "bonfire/passes/fuse_norms.h"

#include <gtest/gtest.h>

#include "bonfire/ops/optimizer_functions.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fuse_norms_test {
namespace {

void fuse(Graph& graph) {
  fuse_norms()->run(graph, {});
  verify(graph, "fuse_norms");
}

std::vector<GraphValue> gradients(Graph& graph) { return {feed(graph, {3, 4}), feed(graph, {5})}; }

GraphValue clipped(Graph& graph, GraphValue squares, std::vector<GraphValue> list) {
  list.insert(list.begin(), {feed(graph, {}, DType::f64), squares});
  return apply(graph, "clip_gradients_by_squares", list);
}

// LARS of one parameter: its inputs, and its attributes.
std::vector<GraphValue> operands(Graph& graph) {
  std::vector<GraphValue> list(5, feed(graph, {}, DType::f64));
  list.push_back(feed(graph, {1}, DType::i64));
  for (int i = 0; i < 3; ++i) list.push_back(feed(graph, {6}));
  return list;
}
Attributes lars() {
  return {{"rule", static_cast<int>(OptimizerRule::lars)}, {"nesterov", 0}, {"parameters", 1}, {"places", Shape{0}}};
}

TEST(FuseNorms, MakesOneOpOfTwo) {
  Graph graph;
  std::vector<GraphValue> list = operands(graph);
  GraphValue squares = apply(graph, "update_squares", list, lars());
  std::vector<GraphValue> with_squares = list;
  with_squares.push_back(squares);
  GraphValue updated = apply(graph, "optimizer_update_by_squares", with_squares, lars());
  std::vector<GraphValue> own = gradients(graph);
  GraphValue clip = clipped(graph, apply(graph, "gradient_squares", own), own);
  graph.set_outputs({{updated.node, 1}, {updated.node, 2}, {clip.node, 0}, {clip.node, 2}});
  fuse(graph);
  EXPECT_EQ(count(graph, "optimizer_update"), 1);
  EXPECT_EQ(count(graph, "update_squares") + count(graph, "optimizer_update_by_squares"), 0);
  EXPECT_EQ(updated.node->inputs, list);
  EXPECT_EQ(count(graph, "clip_gradients"), 1);
  EXPECT_EQ(count(graph, "gradient_squares") + count(graph, "clip_gradients_by_squares"), 0);
  EXPECT_EQ(graph.outputs[3].spec(), own[1].spec());
}

TEST(FuseNorms, LeavesSquaresThatAreSummedOverSlices) {
  Graph graph;
  std::vector<GraphValue> own = gradients(graph);
  GraphValue all = apply(graph, "add", {apply(graph, "gradient_squares", own), feed(graph, {}, DType::f64)});
  graph.set_outputs({clipped(graph, all, own)});
  fuse(graph);
  EXPECT_EQ(count(graph, "clip_gradients_by_squares"), 1);
}

TEST(FuseNorms, LeavesSquaresThatSomebodyElseReads) {
  Graph graph;
  std::vector<GraphValue> own = gradients(graph);
  GraphValue squares = apply(graph, "gradient_squares", own);
  graph.set_outputs({clipped(graph, squares, own), squares});
  fuse(graph);
  EXPECT_EQ(count(graph, "clip_gradients_by_squares"), 1);
}

TEST(FuseNorms, LeavesSquaresOfOtherGradients) {
  Graph graph;
  std::vector<GraphValue> own = gradients(graph);
  graph.set_outputs({clipped(graph, apply(graph, "gradient_squares", {own[1]}), own),
                     clipped(graph, apply(graph, "gradient_squares", own), {own[1]})});
  fuse(graph);
  EXPECT_EQ(count(graph, "clip_gradients_by_squares"), 2);
}

}  // namespace
}  // namespace bonfire::passes::fuse_norms_test
