#include "bonfire/passes/early_sends.h"

#include <gtest/gtest.h>

#include "bonfire/comm/messages.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::early_sends_test {
namespace {

GraphNode* send(Graph& graph, const GraphValue& value, int peer) {
  return graph.add(comm::send_op(), {value},
                   {{"axis", 0}, {"peer", peer}, {"tag", graph.nodes().size()}, {"dtype", DType::f32}});
}

std::vector<const GraphNode*> order(const Graph& graph) {
  std::vector<const GraphNode*> list;
  for (const GraphNode& node : graph.nodes())
    if (!node.is_input()) list.push_back(&node);
  return list;
}

using Nodes = std::vector<const GraphNode*>;

TEST(EarlySends, EachStandsWhereItsOperandIsMade) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  GraphNode* made = apply(graph, "exp", {x}).node;
  GraphNode* other = apply(graph, "exp", {x}).node;
  GraphNode* sent = send(graph, {made, 0}, 1);
  GraphNode* of_input = send(graph, x, 2);
  early_sends()->run(graph, {});
  verify(graph, "early_sends");
  EXPECT_EQ(order(graph), (Nodes{of_input, made, sent, other}));
}

TEST(EarlySends, ThoseToOneRankKeepTheirOrder) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  GraphNode* made = apply(graph, "exp", {x}).node;
  GraphNode* late = apply(graph, "exp", {{made, 0}}).node;
  GraphNode* last = apply(graph, "exp", {{late, 0}}).node;
  GraphNode* first_sent = send(graph, {late, 0}, 1);
  GraphNode* second_sent = send(graph, {made, 0}, 1);  // could go before
  GraphNode* elsewhere = send(graph, {made, 0}, 2);
  early_sends()->run(graph, {});
  verify(graph, "early_sends");
  EXPECT_EQ(order(graph), (Nodes{made, elsewhere, late, first_sent, second_sent, last}));
}

GraphValue receive(Graph& graph, int peer) {
  return {graph.add(comm::receive_op(), {},
                    {{"axis", 0},
                     {"peer", peer},
                     {"tag", 0},
                     {"shape", Shape{4}},
                     {"dtype", DType::f32},
                     {"device_type", 0},
                     {"device_index", 0}}),
          0};
}

// Each waits for the other's send otherwise.
TEST(EarlySends, StandBeforeWhatWaitsForAnotherMessageWithAllTheyNeed) {
  Graph graph;
  GraphValue x = feed(graph, {4});
  GraphValue from_1 = receive(graph, 1), from_2 = receive(graph, 2);
  GraphNode* uses_1 = apply(graph, "exp", {from_1}).node;
  GraphNode* uses_2 = apply(graph, "exp", {from_2}).node;
  GraphNode* made = apply(graph, "exp", {x}).node;
  GraphNode* made_of_1 = apply(graph, "exp", {{uses_1, 0}}).node;
  GraphNode* later = apply(graph, "exp", {{made_of_1, 0}}).node;
  GraphNode* sent = send(graph, {made, 0}, 1);
  GraphNode* answer = send(graph, {made_of_1, 0}, 2);
  early_sends()->run(graph, {});
  verify(graph, "early_sends");
  EXPECT_EQ(order(graph), (Nodes{from_1.node, from_2.node, made, sent, uses_1, made_of_1, answer, uses_2, later}));
}

TEST(EarlySends, NeitherPassAReceiveThatTheyNeedNorACollective) {
  Graph graph;
  GraphValue other = receive(graph, 1);
  GraphNode* uses_other = apply(graph, "exp", {other}).node;
  GraphValue needed = receive(graph, 2);
  GraphNode* sent = send(graph, needed, 1);
  early_sends()->run(graph, {});
  verify(graph, "early_sends");
  EXPECT_EQ(order(graph), (Nodes{other.node, uses_other, needed.node, sent}));
}

}  // namespace
}  // namespace bonfire::passes::early_sends_test
