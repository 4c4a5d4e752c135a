#include "bonfire/passes/fuse_bn_act.h"

#include <gtest/gtest.h>

#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fuse_bn_act_test {
namespace {

// statistics → normalise [→ add residual] → relu, and the backward pass from dy as autodiff traces it.
struct BatchNorm {
  Graph graph;
  GraphValue x, residual, y, dy, dz, dx;

  explicit BatchNorm(bool with_residual) {
    x = feed(graph, {2, 4, 8, 8});
    GraphValue weight = variable(graph, {4}), bias = variable(graph, {4});
    if (with_residual) residual = feed(graph, {2, 4, 8, 8});
    dy = feed(graph, {2, 4, 8, 8});
    GraphValue mean = apply(graph, "batch_norm_statistics", {x}), variance{mean.node, 1};
    GraphValue z =
        apply(graph, "batch_norm_normalize", {x, mean, variance, weight, bias}, {{"eps", 1e-5}, {"training", 1}});
    if (with_residual) z = apply(graph, "add", {z, residual});
    y = apply(graph, "relu", {z});
    dz = apply(graph, "relu_gradient", {dy, y});
    GraphValue sum_dz = apply(graph, "batch_norm_gradient_sums", {dz, x, mean, variance}, {{"eps", 1e-5}});
    dx = apply(graph, "batch_norm_gradient_apply", {dz, x, mean, variance, weight, sum_dz, {sum_dz.node, 1}},
               {{"eps", 1e-5}, {"count", -1}});
    graph.set_outputs({y, dx, sum_dz, {sum_dz.node, 1}});
    if (with_residual) graph.add_output(dz);
  }

  void fuse(const Options& options = {}) {
    fuse_bn_act()->run(graph, options);
    dead_code()->run(graph, options);
    verify(graph, "fuse_bn_act");
  }
};

TEST(FuseBnAct, FusesForwardAndBackward) {
  BatchNorm norm(false);
  norm.fuse();
  EXPECT_EQ(count(norm.graph, "batch_norm_act"), 1);
  EXPECT_EQ(count(norm.graph, "batch_norm_act_gradient_sums"), 1);
  EXPECT_EQ(count(norm.graph, "batch_norm_act_gradient_apply"), 1);
  EXPECT_EQ(count(norm.graph, "relu") + count(norm.graph, "relu_gradient") + count(norm.graph, "batch_norm_normalize"),
            0);
}

TEST(FuseBnAct, TheResidualsGradientComesOutOfTheFusedNode) {
  BatchNorm norm(true);
  norm.fuse();
  EXPECT_EQ(count(norm.graph, "relu_gradient") + count(norm.graph, "add"), 0);
  EXPECT_EQ(norm.graph.outputs[4].node->name(), "batch_norm_act_gradient_apply");
  EXPECT_EQ(norm.graph.outputs[4].index, 1);
}

TEST(FuseBnAct, IsOffWhenTheOptionIs) {
  BatchNorm norm(false);
  norm.fuse({.fuse_bn_act_ops = false});
  EXPECT_EQ(count(norm.graph, "batch_norm_act"), 0);
}

}  // namespace
}  // namespace bonfire::passes::fuse_bn_act_test
