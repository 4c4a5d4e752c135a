#include "bonfire/passes/look_up_products.h"

#include <gtest/gtest.h>

#include "bonfire/base/random.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/indexing.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/passes/common_subexpressions.h"
#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::look_up_products_test {
namespace {

// A layer of 6 after an embedding, over words [3, 5] that are put in order [5, 3], and the backward pass.
struct LayerOptions {
  int64_t rows = 7, size = 32;
  DType dtype = DType::f32;
  int64_t padding_index = -1;
  Device device = {};
};
struct Layer {
  Graph graph;
  GraphValue table, weight, words, rows, dy;

  explicit Layer(const LayerOptions& o = {}) {
    table = feed(graph, {o.rows, o.size}, o.dtype, o.device);
    weight = feed(graph, {6, o.size}, o.dtype, o.device);
    GraphValue bias = feed(graph, {6}, o.dtype, o.device);
    words = feed(graph, {3, 5}, DType::i64, o.device);
    rows = in_order(apply(graph, "embedding", {table, words}, {{"padding_index", o.padding_index}}), {15, o.size});
    GraphValue y = apply(graph, "add", {apply(graph, "matmul", {rows, weight}, product(0, 1)), bias});
    dy = feed(graph, {15, 6}, o.dtype, o.device);
    GraphValue d_weight = apply(graph, "matmul", {dy, rows}, product(1, 0));
    GraphValue d_rows = apply(graph, "reshape", {apply(graph, "matmul", {dy, weight}, product(0, 0))},
                              {{"shape", Shape{5, 3, o.size}}});
    GraphValue d_words = apply(graph, "permute", {d_rows}, {{"axes", Shape{1, 0, 2}}});
    GraphValue d_table =
        apply(graph, "embedding_gradient", {d_words, words}, {{"rows", o.rows}, {"padding_index", o.padding_index}});
    graph.set_outputs({y, d_weight, d_table});
  }

  static Attributes product(int transpose_a, int transpose_b) {
    return {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}};
  }

  GraphValue in_order(GraphValue x, const Shape& flat) {
    return apply(graph, "reshape", {apply(graph, "permute", {x}, {{"axes", Shape{1, 0, 2}}})}, {{"shape", flat}});
  }

  void run() {
    look_up_products()->run(graph, {});
    common_subexpressions()->run(graph, {});
    dead_code()->run(graph, {});
    verify(graph, "look_up_products");
  }

  // Rows of the largest operand of a product.
  int64_t most_multiplied() const {
    int64_t most = 0;
    for (const GraphNode& node : graph.nodes())
      if (node.name() == "matmul")
        for (const GraphValue& input : node.inputs) most = std::max(most, input.spec().shape[0]);
    return most;
  }
};

TEST(LookUpProducts, MultiplyTheTableAndSumsOfItsRows) {
  Layer layer;
  layer.run();
  EXPECT_EQ(layer.most_multiplied(), 7);
  EXPECT_EQ(count(layer.graph, "matmul"), 3);
  EXPECT_EQ(count(layer.graph, "embedding"), 1);
  EXPECT_EQ(count(layer.graph, "embedding_gradient"), 1);  // both gradients share the sums
  EXPECT_EQ(count(layer.graph, "permute"), 1);             // of the words
  const GraphNode& y = *layer.graph.outputs[0].node;
  EXPECT_EQ(y.name(), "embedding");
  EXPECT_EQ(y.inputs[0].node->name(), "add");  // the bias is added to the table
  EXPECT_EQ(layer.graph.outputs[1].spec().shape, Shape({6, 32}));
  EXPECT_EQ(layer.graph.outputs[2].spec().shape, Shape({7, 32}));
}

TEST(LookUpProducts, LeaveLargeTablesAsTheyAre) {
  Layer layer({.rows = 8});
  layer.run();
  EXPECT_EQ(layer.most_multiplied(), 15);
  EXPECT_EQ(layer.graph.outputs[0].node->name(), "add");
}

TEST(LookUpProducts, LeaveNarrowRowsAsTheyAre) {
  Layer layer({.size = 31});
  layer.run();
  EXPECT_EQ(layer.most_multiplied(), 15);
}

TEST(LookUpProducts, LeaveTypesWhoseSumsWouldBeRounded) {
  Layer layer({.dtype = DType::bf16});
  layer.run();
  EXPECT_EQ(layer.most_multiplied(), 15);
}

TEST(LookUpProducts, LeaveDevicesThatMultiplyFast) {
  Layer layer({.device = kGpu});
  layer.run();
  EXPECT_EQ(layer.most_multiplied(), 15);
}

// The padding's row takes part in the weight's gradient but has none of its own.
TEST(LookUpProducts, LeaveTheGradientOfATableWithPadding) {
  Layer layer({.padding_index = 2});
  layer.run();
  EXPECT_EQ(layer.graph.outputs[2].node->name(), "embedding_gradient");
  EXPECT_EQ(layer.graph.outputs[2].node->inputs[0].node->name(), "permute");
  EXPECT_EQ(layer.graph.outputs[1].node->inputs[1], layer.table);
}

TEST(LookUpProducts, LeaveAProductWhoseRowsSomeoneElseNeeds) {
  Layer layer;
  layer.graph.add_output(layer.graph.outputs[2].node->inputs[0]);
  layer.run();
  EXPECT_EQ(layer.graph.outputs[2].node->name(), "embedding_gradient");
  EXPECT_EQ(layer.graph.outputs[2].node->inputs[0].node->name(), "permute");
}

// Logits of a large vocabulary are never all there at once, also not those of a model that is but an embedding and a
// layer.
TEST(LookUpProducts, LeaveALossOverALargeVocabularyFused) {
  Graph graph;
  GraphValue words = feed(graph, {1024}, DType::i64), dloss = feed(graph, {});
  GraphValue table = feed(graph, {30, 32}), weight = feed(graph, {4096, 32});
  GraphValue rows = apply(graph, "embedding", {table, words}, {{"padding_index", -1}});
  GraphValue logits = apply(graph, "matmul", {rows, weight}, Layer::product(0, 1));
  const Attributes mean{{"label_smoothing", 0.0}, {"ignore_index", -100}, {"reduction", 1}};
  GraphValue loss = apply(graph, "cross_entropy", {logits, words}, mean);
  GraphValue gradient =
      apply(graph, "cross_entropy_gradient", {dloss, logits, words, {loss.node, 1}, {loss.node, 2}}, mean);
  graph.set_outputs({loss, apply(graph, "matmul", {gradient, weight}, Layer::product(0, 0)),
                     apply(graph, "matmul", {gradient, rows}, Layer::product(1, 0))});
  run_pipeline(graph, {});
  EXPECT_EQ(count(graph, "linear_cross_entropy"), 1);
}

std::vector<float> numbers(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = uniform_at(3, stream, i) - 0.5F;
  return values;
}

// Against the same with row numbers as one-hot matrices, which nobody looks up.
TEST(LookUpProducts, GiveTheSameResultsAndGradients) {
  constexpr int64_t kRows = 5, kSize = 40, kOut = 6;
  const Shape places{4, 3, 2}, in_order{3, 2, 4, kOut};
  std::vector<int64_t> ids(static_cast<size_t>(places.count()));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * i % 7 % kRows);
  Tensor words = Tensor::from<int64_t>(ids, places);
  Tensor factors = Tensor::from<float>(numbers(in_order.count(), 4), in_order);
  auto results = [&](bool look_up) {
    Tensor table = Tensor::from<float>(numbers(kRows * kSize, 1), {kRows, kSize});
    Tensor weight = Tensor::from<float>(numbers(kOut * kSize, 2), {kOut, kSize});
    Tensor bias = Tensor::from<float>(numbers(kOut, 3), {kOut});
    for (Tensor* each : {&table, &weight, &bias}) each->set_requires_grad(true);
    Tensor rows = look_up ? embedding(table, words) : matmul(one_hot(words, kRows, DType::f32), table);
    Tensor y = linear(permute(rows, {1, 2, 0, 3}), weight, bias);
    sum(y * factors).backward();
    std::vector<float> all;
    for (const Tensor& each : {y, table.grad(), weight.grad(), bias.grad()})
      for (float number : each.to_vector<float>()) all.push_back(number);
    return all;
  };
  const std::vector<float> looked_up = results(true), expected = results(false);
  ASSERT_EQ(looked_up.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(looked_up[i], expected[i], 1e-5) << i;
}

}  // namespace
}  // namespace bonfire::passes::look_up_products_test
