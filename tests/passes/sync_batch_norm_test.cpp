#include "bonfire/passes/sync_batch_norm.h"

#include <gtest/gtest.h>

#include "tests/passes/hand_made.h"

namespace bonfire::passes::sync_batch_norm_test {
namespace {

// A training step of batch norm over x [2, 3, 4, 5]: y, dx, the gradients of weight and bias, both running statistics.
struct Step {
  Graph graph;
  GraphNode *statistics, *normalize, *running, *sums, *gradient;

  Step() {
    GraphValue x = feed(graph, {2, 3, 4, 5}), dy = feed(graph, {2, 3, 4, 5});
    GraphValue weight = variable(graph, {3}), bias = variable(graph, {3});
    GraphValue running_mean = variable(graph, {3}), running_variance = variable(graph, {3});
    statistics = apply(graph, "batch_norm_statistics", {x}).node;
    GraphValue mean{statistics, 0}, variance{statistics, 1};
    normalize =
        apply(graph, "batch_norm_normalize", {x, mean, variance, weight, bias}, {{"eps", 1e-5}, {"training", 1}}).node;
    running = apply(graph, "batch_norm_update_running", {running_mean, running_variance, mean, variance},
                    {{"momentum", 0.1}, {"count", 40}})
                  .node;
    sums = apply(graph, "batch_norm_gradient_sums", {dy, x, mean, variance}, {{"eps", 1e-5}}).node;
    gradient = apply(graph, "batch_norm_gradient_apply", {dy, x, mean, variance, weight, {sums, 0}, {sums, 1}},
                     {{"eps", 1e-5}, {"count", -1}})
                   .node;
    graph.set_outputs({{normalize, 0}, {gradient, 0}, {sums, 0}, {sums, 1}});
    graph.assign(running_mean.node, {running, 0});
    graph.assign(running_variance.node, {running, 1});
  }
};

TEST(SyncBatchNorm, IsLeftOutUnlessAskedFor) {
  Step step;
  sync_batch_norm()->run(step.graph, {});
  EXPECT_EQ(count(step.graph, "all_reduce"), 0);
}

TEST(SyncBatchNorm, NormalisesByTheStatisticsOfAllRanks) {
  Step step;
  sync_batch_norm()->run(step.graph, {.sync_batch_norm = true});
  verify(step.graph, "sync_batch_norm");
  EXPECT_EQ(count(step.graph, "all_reduce"), 2);
  const GraphNode* joint = step.normalize->inputs[1].node;
  EXPECT_EQ(joint->name(), "batch_norm_joint_statistics");
  const GraphNode* all = joint->inputs[0].node;
  EXPECT_EQ(all->name(), "all_reduce");
  EXPECT_EQ(all->attributes.integer("axis"), static_cast<int>(Axis::data));
  const GraphNode* moments = all->inputs[0].node;
  EXPECT_EQ(moments->name(), "batch_norm_moments");
  EXPECT_EQ(moments->attributes.integer("count"), 40);
  EXPECT_EQ(moments->inputs[0].node, step.statistics);
  EXPECT_EQ(step.sums->inputs[2].node, joint);
  EXPECT_EQ(step.running->inputs[3], (GraphValue{const_cast<GraphNode*>(joint), 2}));
}

TEST(SyncBatchNorm, StandInsCountForNothing) {
  Step step;
  sync_batch_norm()->run(step.graph, {.sync_batch_norm = true, .stand_ins = true});
  int counted = 0;
  for (const GraphNode& node : step.graph.nodes())
    if (node.name() == "batch_norm_moments" || node.name() == "batch_norm_joint_sums") {
      ++counted;
      EXPECT_EQ(node.attributes.integer("count"), 0);
    }
  EXPECT_EQ(counted, 2);
}

TEST(SyncBatchNorm, TheGradientGoesThroughTheStatisticsOfAllRanks) {
  Step step;
  sync_batch_norm()->run(step.graph, {.sync_batch_norm = true});
  const GraphNode* joint = step.gradient->inputs[5].node;
  EXPECT_EQ(joint->name(), "batch_norm_joint_sums");
  EXPECT_EQ(step.gradient->inputs[6].node, joint);
  EXPECT_EQ(joint->inputs[0].node->inputs[0].node->inputs[0].node, step.sums);
  EXPECT_EQ(step.graph.outputs[2].node, step.sums);  // of weight and bias: averaged with all other gradients
}

TEST(SyncBatchNorm, ConstantStatisticsStay) {
  Graph graph;
  GraphValue x = feed(graph, {2, 3}), dy = feed(graph, {2, 3}), s = variable(graph, {3});
  GraphValue sums = apply(graph, "batch_norm_gradient_sums", {dy, x, s, s}, {{"eps", 1e-5}});
  graph.set_outputs({sums});
  sync_batch_norm()->run(graph, {.sync_batch_norm = true});
  EXPECT_EQ(count(graph, "all_reduce"), 0);
}

}  // namespace
}  // namespace bonfire::passes::sync_batch_norm_test
