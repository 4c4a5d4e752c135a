// Every node of a step knows its phase, and every gradient the node that it is of.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "bonfire/graph/graph.h"
#include "bonfire/graph/trace.h"

namespace bonfire::phase_test {
namespace {

Parameter some_weight() {
  const float values[] = {1, 2, 3, 4};
  return Parameter(Variable::from<float>(values, {4}));
}

const GraphNode* find(const Graph& graph, int number) {
  for (const GraphNode& node : graph.nodes())
    if (node.number == number) return &node;
  return nullptr;
}

std::vector<const GraphNode*> of_phase(const Graph& graph, Phase phase) {
  std::vector<const GraphNode*> found;
  for (const GraphNode& node : graph.nodes())
    if (!node.is_input() && node.phase == phase) found.push_back(&node);
  return found;
}

std::unique_ptr<Graph> graph_of(Trace& trace) {
  std::unique_ptr<Graph> graph = Graph::from_trace(trace, {});
  verify(*graph, "phase_test");
  return graph;
}

TEST(Phases, OfAStepAreForwardBackwardAndUpdate) {
  manual_seed(1);
  nn::Linear layer({.in = 3, .out = 2});
  optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
  Tensor x = ones({4, 3});
  Trace trace;
  TraceScope scope(trace);
  trace.compiling = true;
  Tensor loss = sum(relu(layer(x)));
  const size_t forward = trace.nodes().size();
  loss.backward();
  const size_t backward = trace.nodes().size();
  optimizer.step();
  ASSERT_GT(backward, forward);
  ASSERT_GT(trace.nodes().size(), backward);
  for (size_t i = 0; i < trace.nodes().size(); ++i) {
    const Phase expected = i < forward ? Phase::forward : i < backward ? Phase::backward : Phase::update;
    EXPECT_EQ(trace.nodes()[i]->phase, expected) << i << " " << trace.nodes()[i]->op->name;
  }
  std::unique_ptr<Graph> graph = graph_of(trace);
  EXPECT_EQ(of_phase(*graph, Phase::forward).size(), forward);
  EXPECT_EQ(of_phase(*graph, Phase::backward).size(), backward - forward);
}

TEST(Phases, OfGradientsAndTheirSumsHaveAnOrigin) {
  Parameter weight = some_weight();
  Trace trace;
  TraceScope scope(trace);
  trace.compiling = true;
  Tensor square, twice;
  {
    PathScope path("first");
    square = weight.value() * weight.value();
  }
  {
    PathScope path("second");
    twice = exp(square) * tanh(square);  // the gradient of `square` is a sum
  }
  sum(twice).backward();
  std::unique_ptr<Graph> graph = graph_of(trace);
  const int square_number = static_cast<int>(square.value().node->position);
  int sums = 0;
  for (const GraphNode* node : of_phase(*graph, Phase::backward)) {
    if (node->origin < 0) {  // the gradient of the loss by itself, which is no node's
      EXPECT_TRUE(node->inputs.empty()) << node->name();
      continue;
    }
    const GraphNode* origin = find(*graph, node->origin);
    ASSERT_NE(origin, nullptr) << node->name();
    EXPECT_EQ(origin->phase, Phase::forward) << node->name();
    EXPECT_EQ(node->path, origin->path) << node->name();
    if (node->name() == "add" && node->origin == square_number) ++sums;
  }
  EXPECT_EQ(sums, 2);  // of `square`, and of the weight, which it reads twice
}

TEST(Phases, OfAForwardPassThatHasRunThereIsNoOrigin) {
  Parameter weight = some_weight();
  Tensor loss = sum(exp(weight.value()));
  EXPECT_GT(loss.item(), 0);
  Trace trace;
  TraceScope scope(trace);
  trace.compiling = true;
  loss.backward();
  std::unique_ptr<Graph> graph = graph_of(trace);
  for (const GraphNode* node : of_phase(*graph, Phase::backward)) EXPECT_EQ(node->origin, -1) << node->name();
  EXPECT_TRUE(of_phase(*graph, Phase::forward).empty());
}

// The same ops in another phase are another step: passes ask for phases.
TEST(Phases, ArePartOfATracesHash) {
  Tensor x = ones({4});
  auto hash_in = [&](Phase phase) {
    Trace trace;
    TraceScope scope(trace);
    PhaseScope there(phase);
    exp(x);
    return trace.hash();
  };
  EXPECT_TRUE(hash_in(Phase::forward) == hash_in(Phase::forward));
  EXPECT_FALSE(hash_in(Phase::forward) == hash_in(Phase::backward));
}

}  // namespace
}  // namespace bonfire::phase_test
