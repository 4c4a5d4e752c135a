#include "bonfire/passes/amp.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes::amp_test {
namespace {

const Options kAmp{.use_amp = true};

GraphValue product(Graph& graph, GraphValue a, GraphValue b) {
  return apply(graph, "matmul", {a, b}, {{"transpose_a", 0}, {"transpose_b", 0}});
}

TEST(Amp, DoesNothingUnlessAsked) {
  Graph graph;
  graph.set_outputs({product(graph, feed(graph, {2, 3}), variable(graph, {3, 4}))});
  amp()->run(graph, {});
  EXPECT_EQ(count(graph, "cast"), 0);
}

TEST(Amp, ComputesProductsInBf16AndKeepsOutputsInF32) {
  Graph graph;
  GraphValue y = product(graph, feed(graph, {2, 3}), variable(graph, {3, 4}));
  graph.set_outputs({y});
  amp()->run(graph, kAmp);
  verify(graph, "amp");
  EXPECT_EQ(y.node->outputs[0].dtype, DType::bf16);
  EXPECT_EQ(graph.outputs[0].spec().dtype, DType::f32);
  EXPECT_EQ(count(graph, "cast"), 3);
}

TEST(Amp, CastsAWeightOnceForAllItsUsers) {
  Graph graph;
  GraphValue w = variable(graph, {3, 3});
  graph.set_outputs({product(graph, product(graph, feed(graph, {2, 3}), w), w)});
  amp()->run(graph, kAmp);
  verify(graph, "amp");
  EXPECT_EQ(count(graph, "cast"), 3);  // x, w, and the output back
}

TEST(Amp, ABroadcastF32OperandDoesNotWidenABf16Result) {
  Graph graph;
  GraphValue sum =
      apply(graph, "add", {product(graph, feed(graph, {2, 3}), variable(graph, {3, 4})), variable(graph, {4})});
  graph.set_outputs({sum});
  amp()->run(graph, kAmp);
  verify(graph, "amp");
  EXPECT_EQ(sum.node->outputs[0].dtype, DType::bf16);
}

TEST(Amp, OpsThatNeedPrecisionGetF32) {
  Graph graph;
  GraphValue probabilities =
      apply(graph, "softmax", {product(graph, feed(graph, {2, 3}), variable(graph, {3, 4}))}, {{"axis", 1}});
  graph.set_outputs({probabilities});
  amp()->run(graph, kAmp);
  verify(graph, "amp");
  EXPECT_EQ(probabilities.node->inputs[0].spec().dtype, DType::f32);
}

TEST(Amp, InputsThatAnOpKeepsStayInF32) {
  Graph graph;
  GraphValue q = feed(graph, {1, 2, 3, 4}), mask = feed(graph, {3, 3});
  Attributes attributes{{"causal", 0}, {"has_mask", 1}, {"scale", 0.5}, {"dropout", 0.0}, {"number", 0}};
  GraphValue y = apply(graph, "attention", {q, q, q, mask}, attributes);
  GraphValue dq = apply(graph, "attention_gradient", {y, y, {y.node, 1}, q, q, q, mask}, attributes);
  graph.set_outputs({dq});
  amp()->run(graph, kAmp);
  verify(graph, "amp");
  EXPECT_EQ(dq.node->inputs[0].spec().dtype, DType::bf16);
  EXPECT_EQ(dq.node->inputs[2].spec().dtype, DType::f32);  // the logarithm of the sum
  EXPECT_EQ(dq.node->inputs[6], mask);
  EXPECT_EQ(y.node->inputs[3], mask);
}

TEST(Amp, AssignmentsKeepTheVariablesType) {
  Graph graph;
  GraphValue w = variable(graph, {3, 3});
  graph.assign(w.node, product(graph, w, w));
  amp()->run(graph, kAmp);
  verify(graph, "amp");
  EXPECT_EQ(graph.assignments[0].value.spec().dtype, DType::f32);
}

}  // namespace
}  // namespace bonfire::passes::amp_test
