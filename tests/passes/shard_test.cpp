#include "bonfire/passes/shard.h"

#include <gtest/gtest.h>

#include "bonfire/graph/sliced_value.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/nn/module.h"
#include "bonfire/ops/attention.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/layer_norm.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/passes/common_subexpressions.h"
#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::shard_test {
namespace {

// What is traced while it lives is compiled as by the second of two ranks that share layers.
class TwoRanks {
 public:
  TwoRanks() { StepContext::current().mesh = Mesh::of(1, 2, {.tensor = 2}); }
  ~TwoRanks() { StepContext::current().mesh = {}; }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;
};

Variable parameter(const Shape& shape, int split = -1) {
  Variable variable({shape, DType::f32, {}}, "w");
  if (split >= 0) variable.keep_slice(Slice::part(shape, split, 1, 2));
  variable.set_requires_grad(true);
  return variable;
}

std::unique_ptr<Graph> sharded(Trace& trace, const std::vector<Tensor>& live) {
  std::vector<Value> values;
  for (const Tensor& one : live) values.push_back(one.value());
  std::unique_ptr<Graph> graph = Graph::from_trace(trace, values);
  dead_code()->run(*graph, {});
  common_subexpressions()->run(*graph, {});
  shard()->run(*graph, {});
  verify(*graph, "shard");
  dead_code()->run(*graph, {});
  require_no_placeholders(*graph);
  return graph;
}

int collectives(const Graph& graph, Phase phase) {
  int found = 0;
  for (const GraphNode& node : graph.nodes())
    if (!node.is_input() && node.op->has(Trait::collective) && node.phase == phase) ++found;
  return found;
}

TEST(Shard, ColumnsThenRowsCostOneAllReduceForwardAndOneBackward) {
  const TwoRanks ranks;
  Trace trace;
  TraceScope scope(trace);
  const Variable w1 = parameter({32, 16}, 0), b1 = parameter({32}, 0), w2 = parameter({16, 32}, 1),
                 b2 = parameter({16}), first = parameter({16, 16});
  const Tensor x = matmul(Tensor::from<float>(std::vector<float>(64, 1), {4, 16}), first.value());
  const Tensor y = x + linear(gelu(linear(x, w1.value(), b1.value())), w2.value(), b2.value());
  const Tensor loss = mean(square(y));
  loss.backward();
  const auto graph = sharded(trace, {loss});
  EXPECT_EQ(collectives(*graph, Phase::forward), 1);
  EXPECT_EQ(collectives(*graph, Phase::backward), 1);
  EXPECT_EQ(count(*graph, "all_reduce"), 2);
  EXPECT_TRUE(gathered_in(*graph).empty());
}

// Heads of attention: three products of one input, whose gradients are one sum before they are reduced.
TEST(Shard, AttentionByHeadsCostsOneAllReduceForwardAndOneBackward) {
  const TwoRanks ranks;
  Trace trace;
  TraceScope scope(trace);
  const Variable first = parameter({16, 16}), out = parameter({16, 16}, 1);
  const Variable weights[] = {parameter({16, 16}, 0), parameter({16, 16}, 0), parameter({16, 16}, 0)};
  const Tensor x = matmul(Tensor::from<float>(std::vector<float>(128, 1), {2, 4, 16}), first.value());
  std::vector<Tensor> heads;
  for (const Variable& weight : weights)
    heads.push_back(permute(reshape(linear(x, weight.value(), {}), {2, 4, 4, 4}), {0, 2, 1, 3}));
  const Tensor mixed = scaled_dot_product_attention(heads[0], heads[1], heads[2], {.dropout = 0.5});
  const Tensor loss = mean(square(x + linear(flatten(permute(mixed, {0, 2, 1, 3}), 2), out.value(), {})));
  loss.backward();
  const auto graph = sharded(trace, {loss});
  EXPECT_EQ(collectives(*graph, Phase::forward), 1);
  EXPECT_EQ(collectives(*graph, Phase::backward), 1);
  for (const GraphNode& node : graph->nodes())
    if (node.name() == "attention") {
      EXPECT_EQ(node.outputs[0].shape, (Shape{2, 2, 4, 4}));
    }
}

TEST(Shard, LogitsOfASharedVocabularyAreNeverGathered) {
  const TwoRanks ranks;
  Trace trace;
  TraceScope scope(trace);
  const Variable table = parameter({64, 16}, 0);
  const Tensor x = Tensor::from<float>(std::vector<float>(128, 1), {8, 16});
  const Tensor logits = matmul(x, table.value(), {.transpose_b = true});
  const Tensor loss = cross_entropy(logits, Tensor::from<int64_t>(std::vector<int64_t>(8, 63), {8}));
  loss.backward();
  const auto graph = sharded(trace, {loss});
  EXPECT_EQ(count(*graph, "all_gather"), 0);
  for (const GraphNode& node : graph->nodes())
    for (const TensorSpec& output : node.outputs) EXPECT_NE(output.shape, (Shape{8, 64})) << node.name();
}

TEST(Shard, AnOpWithoutARuleGathersAndIsNamed) {
  const TwoRanks ranks;
  Trace trace;
  TraceScope scope(trace);
  const Variable w = parameter({16, 16}, 0);
  const Tensor x = Tensor::from<float>(std::vector<float>(64, 1), {4, 16});
  const Tensor y = layer_norm(matmul(x, w.value()), {}, {}, {.rank = 1});
  const auto graph = sharded(trace, {y});
  const std::vector<Gathered> gathered = gathered_in(*graph);
  ASSERT_EQ(gathered.size(), 0U);  // rows of x · w: partial sums are completed, not gathered
  Trace other;
  TraceScope inner(other);
  const Tensor z = layer_norm(matmul(x, w.value(), {.transpose_b = true}), {}, {}, {.rank = 1});
  const auto columns = sharded(other, {z});
  ASSERT_EQ(gathered_in(*columns).size(), 1U);
  EXPECT_EQ(gathered_in(*columns)[0].op, "layer_norm");
}

TEST(Shard, OneRankAlongTheTensorAxisChangesNothing) {
  Trace trace;
  TraceScope scope(trace);
  const Variable w = parameter({16, 16});
  const Tensor y = matmul(Tensor::from<float>(std::vector<float>(64, 1), {4, 16}), w.value());
  std::vector<Value> live{y.value()};
  const std::unique_ptr<Graph> graph = Graph::from_trace(trace, live);
  const std::string before = print_graph(*graph);
  shard()->run(*graph, {});
  EXPECT_EQ(print_graph(*graph), before);
}

}  // namespace
}  // namespace bonfire::passes::shard_test
