// The graph itself knows who uses what, whatever changes it.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <stdexcept>

#include "bonfire/base/error.h"
#include "bonfire/graph/graph.h"
#include "bonfire/ops/elementwise.h"
#include "tests/support/expect_error.h"

namespace bonfire::uses_test {
namespace {

GraphValue feed(Graph& graph) { return {graph.add_input(LeafKind::feed, TensorSpec{{4}, DType::f32, Device{}}), 0}; }

// As found by looking at the whole graph.
void expect_uses_are_true(Graph& graph, uint32_t seed) {
  std::map<std::pair<const GraphNode*, int>, std::multiset<const GraphNode*>> users;
  std::map<std::pair<const GraphNode*, int>, int> by_graph;
  for (const GraphNode& node : graph.nodes())
    for (const GraphValue& input : node.inputs) users[{input.node, input.index}].insert(&node);
  for (const GraphValue& output : graph.outputs) ++by_graph[{output.node, output.index}];
  for (const GraphAssignment& assignment : graph.assignments)
    ++by_graph[{assignment.value.node, assignment.value.index}];
  for (GraphNode& node : graph.nodes()) {
    const std::vector<GraphNode*>& known = graph.users({&node, 0});
    EXPECT_EQ((std::multiset<const GraphNode*>(known.begin(), known.end())), (users[{&node, 0}])) << "seed " << seed;
    EXPECT_EQ(graph.graph_uses({&node, 0}), (by_graph[{&node, 0}])) << "seed " << seed;
  }
}

TEST(GraphUses, StayTrueThroughRandomChanges) {
  const Op &add = find_op("add"), &relu = find_op("relu");
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    Graph graph;
    std::vector<GraphValue> values{feed(graph), feed(graph)};
    auto any = [&](size_t below) { return static_cast<size_t>(random() % below); };
    for (int change = 0; change < 60; ++change) {
      const GraphValue a = values[any(values.size())], b = values[any(values.size())];
      switch (random() % 9) {
        case 0: values.push_back({graph.add(add, {a, b}), 0}); break;
        case 1: values.push_back({graph.add_like(*a.node, relu, {a}), 0}); break;
        case 2: graph.add_output(a); break;
        case 3:
          if (!graph.outputs.empty()) graph.set_output(any(graph.outputs.size()), a);
          break;
        case 4: graph.replace(a, values[any(2)]); break;  // by an input, so that no node comes to read itself
        case 5:
          if (!b.node->inputs.empty()) graph.set_input(b.node, any(b.node->inputs.size()), values[any(2)]);
          break;
        case 6: graph.assign(values[0].node, a); break;
        case 7:
          if (!graph.assignments.empty()) graph.unassign(any(graph.assignments.size()));
          break;
        default:
          if (b.node->is_input() || !graph.users(b).empty() || graph.graph_uses(b) > 0) break;
          graph.erase(b.node);
          std::erase(values, b);
      }
    }
    expect_uses_are_true(graph, seed);
  }
}

TEST(GraphUses, WhatIsUsedCannotBeErased) {
  Graph graph;
  const GraphValue x = feed(graph), y{graph.add(find_op("relu"), {x}), 0}, z{graph.add(find_op("exp"), {y}), 0};
  EXPECT_ERROR(graph.erase(y.node), std::logic_error, "[relu] is erased while something still uses it");
  graph.add_output(z);
  EXPECT_ERROR(graph.erase(z.node), std::logic_error, "[exp] is erased while something still uses it");
  graph.set_output(0, y);
  graph.erase(z.node);
  EXPECT_TRUE(graph.users(y).empty());
  EXPECT_EQ(graph.graph_uses(y), 1);
}

TEST(GraphUses, ANodeThatReadsAValueTwiceIsItsOnlyUser) {
  Graph graph;
  const GraphValue x = feed(graph);
  GraphNode* twice = graph.add(find_op("add"), {x, x});
  EXPECT_EQ(graph.users(x).size(), 2U);
  EXPECT_TRUE(graph.only_user(x, twice));
  graph.set_input(twice, 1, feed(graph));
  EXPECT_EQ(graph.users(x).size(), 1U);
  graph.add_output(x);
  EXPECT_FALSE(graph.only_user(x, twice));
}

}  // namespace
}  // namespace bonfire::uses_test
