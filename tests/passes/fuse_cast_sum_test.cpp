#include "bonfire/passes/fuse_cast_sum.h"

#include <gtest/gtest.h>

#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fuse_cast_sum_test {
namespace {

GraphValue sum_of_rows(Graph& graph, GraphValue x) {
  return apply(graph, "sum", {x}, {{"axes", Shape{0}}, {"keepdim", 0}});
}

void fuse(Graph& graph) {
  fuse_cast_sum()->run(graph, {});
  dead_code()->run(graph, {});
  verify(graph, "fuse_cast_sum");
}

TEST(FuseCastSum, SumsBf16WithoutACastOfAllOfIt) {
  Graph graph;
  GraphValue wide = apply(graph, "cast", {feed(graph, {8, 5}, DType::bf16)}, {{"dtype", DType::f32}});
  graph.set_outputs({sum_of_rows(graph, wide)});
  fuse(graph);
  EXPECT_EQ(count(graph, "sum_as_f32"), 1);
  EXPECT_EQ(count(graph, "cast") + count(graph, "sum"), 0);
  EXPECT_EQ(graph.outputs[0].spec(), (TensorSpec{{5}, DType::f32, {}}));
}

TEST(FuseCastSum, LeavesSumsOfWhatIsF32Anyway) {
  Graph graph;
  graph.set_outputs({sum_of_rows(graph, feed(graph, {8, 5}))});
  fuse(graph);
  EXPECT_EQ(count(graph, "sum"), 1);
}

}  // namespace
}  // namespace bonfire::passes::fuse_cast_sum_test
