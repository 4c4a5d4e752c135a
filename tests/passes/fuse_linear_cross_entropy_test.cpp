#include "bonfire/passes/fuse_linear_cross_entropy.h"

#include <gtest/gtest.h>

#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::fuse_linear_cross_entropy_test {
namespace {

// A layer over a vocabulary, its loss and all gradients, as autodiff leaves them. With `type` bf16, as amp does.
struct Step {
  Graph graph;
  GraphValue x, weight, bias, logits, loss, dloss;

  explicit Step(int64_t rows, int64_t classes, DType type = DType::f32) {
    x = feed(graph, {rows, 16}, type);
    weight = feed(graph, {classes, 16}, type);
    bias = feed(graph, {classes}, type);
    GraphValue target = feed(graph, {rows}, DType::i64);
    dloss = feed(graph, {});
    GraphValue product = apply(graph, "matmul", {x, weight}, {{"transpose_a", 0}, {"transpose_b", 1}});
    logits = apply(graph, "add", {product, bias});
    GraphValue wide = as(apply(graph, "reshape", {logits}, {{"shape", Shape{rows, classes}}}), DType::f32);
    Attributes loss_attributes{{"label_smoothing", 0.0}, {"ignore_index", -100}, {"reduction", 1}};
    loss = apply(graph, "cross_entropy", {wide, target}, loss_attributes);
    GraphValue wide_gradient =
        apply(graph, "cross_entropy_gradient", {dloss, wide, target, {loss.node, 1}, {loss.node, 2}}, loss_attributes);
    GraphValue gradient = as(wide_gradient, type);
    GraphValue dx = apply(graph, "matmul", {gradient, weight}, {{"transpose_a", 0}, {"transpose_b", 0}});
    GraphValue dweight = apply(graph, "matmul", {gradient, x}, {{"transpose_a", 1}, {"transpose_b", 0}});
    GraphValue dbias = apply(graph, "sum", {wide_gradient}, {{"axes", Shape{0}}, {"keepdim", 0}});
    graph.set_outputs({loss, dx, as(dweight, DType::f32), dbias});
  }

  GraphValue as(GraphValue value, DType type) {
    return value.spec().dtype == type ? value : apply(graph, "cast", {value}, {{"dtype", type}});
  }

  void fuse() {
    fuse_linear_cross_entropy()->run(graph, {});
    dead_code()->run(graph, {});
    verify(graph, "fuse_linear_cross_entropy");
  }
};

TEST(FuseLinearCrossEntropy, MakesOneNodeOfTheLayerTheLossAndTheirGradients) {
  Step step(1024, 4096);
  step.fuse();
  EXPECT_EQ(count(step.graph, "linear_cross_entropy"), 1);
  EXPECT_EQ(count(step.graph, "matmul") + count(step.graph, "cross_entropy") + count(step.graph, "sum"), 0);
}

TEST(FuseLinearCrossEntropy, LooksThroughTheCastsOfMixedPrecision) {
  Step step(1024, 4096, DType::bf16);
  step.fuse();
  EXPECT_EQ(count(step.graph, "linear_cross_entropy"), 1);
  EXPECT_EQ(count(step.graph, "matmul") + count(step.graph, "cast"), 0);
  EXPECT_EQ(step.graph.outputs[2].spec().dtype, DType::f32);
}

TEST(FuseLinearCrossEntropy, LeavesASmallVocabulary) {
  Step step(1024, 1000);
  step.fuse();
  EXPECT_EQ(count(step.graph, "linear_cross_entropy"), 0);
}

TEST(FuseLinearCrossEntropy, LeavesLogitsThatSomeoneReads) {
  Step step(1024, 4096);
  step.graph.add_output(step.logits);
  step.fuse();
  EXPECT_EQ(count(step.graph, "linear_cross_entropy"), 0);
}

TEST(FuseLinearCrossEntropy, BringsTheLossGradientForward) {
  Step step(1024, 4096);
  // dloss is computed after the loss, and the loss is used before that.
  GraphNode* gradient = nullptr;
  for (GraphNode& node : step.graph.nodes())
    if (node.name() == "cross_entropy_gradient") gradient = &node;
  GraphNode* squared = step.graph.add(find_op("square"), {step.loss}, {}, gradient);
  step.graph.set_input(gradient, 0, {step.graph.add(find_op("square"), {step.dloss}, {}, gradient), 0});
  step.graph.add_output({squared, 0});
  step.fuse();
  EXPECT_EQ(count(step.graph, "linear_cross_entropy"), 1);
}

TEST(FuseLinearCrossEntropy, LeavesALossThatItsOwnGradientDependsOn) {
  Step step(1024, 4096);
  for (GraphNode& node : step.graph.nodes())
    if (node.name() == "cross_entropy_gradient") step.graph.set_input(&node, 0, step.loss);
  step.fuse();
  EXPECT_EQ(count(step.graph, "linear_cross_entropy"), 0);
}

}  // namespace
}  // namespace bonfire::passes::fuse_linear_cross_entropy_test
