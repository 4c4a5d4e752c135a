#include "bonfire/passes/fuse_embedding_add.h"

#include <gtest/gtest.h>

#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fuse_embedding_add_test {
namespace {

GraphValue embedding_gradient(Graph& graph) {
  return apply(graph, "embedding_gradient", {feed(graph, {3, 4}), feed(graph, {3}, DType::i64)},
               {{"rows", 9}, {"padding_index", -1}});
}

void fuse(Graph& graph) {
  fuse_embedding_add()->run(graph, {});
  dead_code()->run(graph, {});
  verify(graph, "fuse_embedding_add");
}

TEST(FuseEmbeddingAdd, AddsRowsToTheOtherGradient) {
  for (bool first : {false, true}) {
    Graph graph;
    GraphValue rows = embedding_gradient(graph), other = apply(graph, "exp", {feed(graph, {9, 4})});
    graph.set_outputs({first ? apply(graph, "add", {rows, other}) : apply(graph, "add", {other, rows})});
    fuse(graph);
    EXPECT_EQ(count(graph, "embedding_gradient_add"), 1);
    EXPECT_EQ(count(graph, "embedding_gradient") + count(graph, "add"), 0);
    EXPECT_EQ(graph.outputs[0].spec(), (TensorSpec{{9, 4}, DType::f32, {}}));
  }
}

TEST(FuseEmbeddingAdd, AddsToWhatMixedPrecisionHasRounded) {
  Graph graph;
  GraphValue rounded = apply(graph, "cast", {feed(graph, {9, 4})}, {{"dtype", DType::bf16}});
  graph.set_outputs({apply(graph, "add", {rounded, embedding_gradient(graph)})});
  fuse(graph);
  EXPECT_EQ(count(graph, "embedding_gradient_add"), 1);
  EXPECT_EQ(count(graph, "cast"), 0);
}

TEST(FuseEmbeddingAdd, LeavesAGradientThatIsUsedElsewhere) {
  Graph graph;
  GraphValue rows = embedding_gradient(graph);
  graph.set_outputs({apply(graph, "add", {rows, feed(graph, {9, 4})}), apply(graph, "exp", {rows})});
  fuse(graph);
  EXPECT_EQ(count(graph, "embedding_gradient_add"), 0);
}

TEST(FuseEmbeddingAdd, LeavesASumThatIsBroadcast) {
  Graph graph;
  graph.set_outputs({apply(graph, "add", {embedding_gradient(graph), feed(graph, {4})})});
  fuse(graph);
  EXPECT_EQ(count(graph, "embedding_gradient_add"), 0);
}

}  // namespace
}  // namespace bonfire::passes::fuse_embedding_add_test
