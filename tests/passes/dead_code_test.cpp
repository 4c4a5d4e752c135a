#include "bonfire/passes/dead_code.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes::dead_code_test {
namespace {

TEST(DeadCode, RemovesWhatNothingUsesAndItsInputs) {
  Graph graph;
  GraphValue x = feed(graph, {4}), unused = feed(graph, {4});
  graph.set_outputs({apply(graph, "relu", {x})});
  apply(graph, "tanh", {apply(graph, "exp", {unused})});
  dead_code()->run(graph, {});
  verify(graph, "dead_code");
  EXPECT_EQ(count(graph, "relu"), 1);
  EXPECT_EQ(count(graph, "tanh") + count(graph, "exp"), 0);
  EXPECT_EQ(count(graph, "input"), 1);
}

TEST(DeadCode, KeepsWhatAnAssignmentNeeds) {
  Graph graph;
  GraphValue w = variable(graph, {4});
  graph.assign(w.node, apply(graph, "relu", {w}));
  dead_code()->run(graph, {});
  EXPECT_EQ(count(graph, "relu"), 1);
}

}  // namespace
}  // namespace bonfire::passes::dead_code_test
