#include "bonfire/passes/recompute.h"

#include <gtest/gtest.h>

#include <set>

#include "bonfire/bonfire.h"
#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::recompute_test {
namespace {

Variable weight(const char* name) {
  Variable made({{4, 4}, DType::f32, {}}, name);
  made.set_requires_grad(true);
  return made;
}

Tensor rows() { return Tensor::from<float>(std::vector<float>(8, 0.5F), {2, 4}); }

// The graph of a step that ends with such a loss, with and without the pass.
struct Traced {
  std::unique_ptr<Graph> graph;

  explicit Traced(const std::function<Tensor()>& loss_of, bool with_backward = true) {
    Trace trace;
    const TraceScope scope(trace);
    const Tensor loss = loss_of();
    if (with_backward) loss.backward();
    const Value live[] = {loss.value()};
    graph = Graph::from_trace(trace, live);
  }

  void run(const Options& options = {}) const {
    mark_recomputed()->run(*graph, options);
    recompute()->run(*graph, options);
    verify(*graph, "recompute");
    dead_code()->run(*graph, options);
  }

  // Of nodes that are in a part: those that the backward pass reads.
  std::multiset<std::string> read_late() const {
    std::multiset<std::string> names;
    for (const GraphNode& node : graph->nodes()) {
      if (node.is_input() || node.phase != Phase::forward || node.recomputed_parts.empty()) continue;
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i)
        for (const GraphNode* user : graph->users({const_cast<GraphNode*>(&node), i}))
          if (user->phase != Phase::forward) names.insert(std::string(node.name()));
    }
    return names;
  }
  int copies(std::string_view name = "") const {
    int count = 0;
    for (const GraphNode& node : graph->nodes())
      count += node.recomputed && (name.empty() || node.name() == name) ? 1 : 0;
    return count;
  }
};

using Names = std::multiset<std::string>;

TEST(RecomputePass, KeepsOnlyWhatGoesIntoAPart) {
  const Variable first = weight("first"), second = weight("second");
  const auto part = [&](const Tensor& x) { return tanh(matmul(tanh(matmul(x, first.value())), second.value())); };
  const Traced plain([&] { return sum(square(tanh(recompute(part, matmul(rows(), first.value()))))); });
  EXPECT_FALSE(plain.read_late().empty());
  plain.run();
  EXPECT_EQ(plain.read_late(), Names());
  EXPECT_EQ(plain.copies("tanh"), 2);
  EXPECT_EQ(plain.copies("matmul"), 2);
  int forward_after_copies = 0;
  bool met_copy = false;
  for (const GraphNode& node : plain.graph->nodes()) {
    met_copy |= node.recomputed;
    forward_after_copies += met_copy && !node.is_input() && node.phase == Phase::forward ? 1 : 0;
  }
  EXPECT_EQ(forward_after_copies, 0);
}

TEST(RecomputePass, ReadsWhatOthersKeepAnyway) {
  const Variable first = weight("first");
  const Traced step([&] {
    const Tensor y = recompute([&](const Tensor& x) { return tanh(matmul(x, first.value())); }, rows());
    return sum(square(y));  // its gradient reads y
  });
  step.run();
  EXPECT_EQ(step.copies(), 0);
  EXPECT_FALSE(step.read_late().empty());
}

TEST(RecomputePass, DrawsTheSameNumbers) {
  const Variable first = weight("first");
  const Traced step([&] {
    return sum(tanh(recompute([&](const Tensor& x) { return tanh(dropout(matmul(x, first.value()), 0.5)); }, rows())));
  });
  step.run();
  std::vector<const GraphNode*> draws;
  for (const GraphNode& node : step.graph->nodes())
    if (node.name() == "dropout" && (node.phase == Phase::forward || node.recomputed)) draws.push_back(&node);
  ASSERT_EQ(draws.size(), 2U);
  EXPECT_TRUE(draws[0]->attributes == draws[1]->attributes);
  EXPECT_TRUE(draws[0]->inputs[1].node->inputs[0] == draws[1]->inputs[1].node->inputs[0]);  // the key is made of it
}

TEST(RecomputePass, UpdatesRunningStatisticsOnce) {
  const nn::BatchNorm2d norm({.channels = 3});
  const Variable scale({{1, 3, 1, 1}, DType::f32, {}}, "scale");
  Variable(scale).set_requires_grad(true);
  const Traced step([&] {
    const Tensor x = Tensor::from<float>(std::vector<float>(2 * 3 * 4, 0.5F), {2, 3, 2, 2}) * scale.value();
    return sum(tanh(recompute([&](const Tensor& y) { return tanh(norm(y)); }, x)));
  });
  const int before = count(*step.graph, "batch_norm_update_running");
  step.run();
  EXPECT_GT(step.copies("batch_norm_statistics"), 0);
  EXPECT_GT(before, 0);
  EXPECT_EQ(step.copies("batch_norm_update_running"), 0);
}

TEST(RecomputePass, ComputesPartsInPartsAgainEachTime) {
  const Variable first = weight("first"), second = weight("second"), third = weight("third");
  const auto layer = [](const Variable& by) { return [&](const Tensor& x) { return tanh(matmul(x, by.value())); }; };
  const Traced step([&] {
    const Tensor y = recompute(
        [&](const Tensor& x) {
          const Tensor inner =
              recompute([&](const Tensor& z) { return layer(second)(layer(first)(z)); }, layer(third)(x));
          return layer(third)(inner);
        },
        rows());
    return sum(tanh(y));
  });
  step.run();
  EXPECT_EQ(step.read_late(), Names());
  // Of four layers each is made again for the outer part's gradients, and the first of the inner part once more: what
  // the second makes is read outside it.
  EXPECT_EQ(count(*step.graph, "tanh") - 1, 4 + 4 + 1);
}

TEST(RecomputePass, MarksModulesByTheirPaths) {
  const auto linear = [] { return nn::Linear({.in = 4, .out = 4}); };
  const nn::Sequential net({linear(), nn::Sequential({nn::Tanh(), linear(), nn::Tanh()}), linear()});
  const auto loss = [&] { return sum(square(net(rows()))); };
  const Traced one(loss), every(loss), none(loss), eval(loss, false);
  one.run({.recompute = {"1"}});  // what its last layer makes is read by the next one's gradient
  EXPECT_EQ(one.copies("tanh"), 1);
  EXPECT_EQ(one.copies(), 1);
  every.run({.recompute = {"*"}});
  EXPECT_EQ(every.copies(), 1);
  none.run({.recompute = {"nothing"}});
  EXPECT_EQ(none.copies(), 0);
  eval.run({.recompute = {"*"}});
  EXPECT_EQ(eval.copies(), 0);
  EXPECT_TRUE(is_in_recomputed_module("encoder.layer.1.fc", {.recompute = {"encoder.layer.*"}}));
  EXPECT_TRUE(is_in_recomputed_module("encoder", {.recompute = {"encoder"}}));
  EXPECT_FALSE(is_in_recomputed_module("encoders.0", {.recompute = {"encoder"}}));
}

}  // namespace
}  // namespace bonfire::passes::recompute_test
