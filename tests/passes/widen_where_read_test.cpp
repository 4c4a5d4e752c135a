#include "bonfire/passes/widen_where_read.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes::widen_where_read_test {
namespace {

GraphValue cast_to(Graph& graph, GraphValue value, DType dtype) {
  return apply(graph, "cast", {value}, {{"dtype", dtype}});
}

TEST(WidenWhereRead, EachReaderHasACastOfItsOwnModule) {
  Graph graph;
  const GraphValue narrow = cast_to(graph, feed(graph, {2, 3}), DType::bf16);
  const GraphValue wide = cast_to(graph, narrow, DType::f32);
  const GraphValue a = apply(graph, "exp", {wide}), b = apply(graph, "add", {wide, wide});
  a.node->path = "first";
  b.node->path = "second";
  b.node->phase = Phase::backward;
  graph.set_outputs({a, b});
  widen_where_read()->run(graph, {});
  verify(graph, "widen_where_read");
  EXPECT_EQ(count(graph, "cast"), 4);  // the narrow one, one for exp, two for the operands of add
  for (const GraphValue& reader : {a, b})
    for (const GraphValue& input : reader.node->inputs) {
      EXPECT_EQ(input.node->inputs[0], narrow);
      EXPECT_EQ(input.node->path, reader.node->path);
      EXPECT_EQ(input.node->phase, reader.node->phase);
    }
}

TEST(WidenWhereRead, LeavesNarrowingCastsAndOutputs) {
  Graph graph;
  const GraphValue narrow = cast_to(graph, feed(graph, {2, 3}), DType::bf16);
  const GraphValue wide = cast_to(graph, narrow, DType::f32);
  graph.set_outputs({wide, apply(graph, "exp", {narrow})});
  widen_where_read()->run(graph, {});
  verify(graph, "widen_where_read");
  EXPECT_EQ(count(graph, "cast"), 2);
}

}  // namespace
}  // namespace bonfire::passes::widen_where_read_test
