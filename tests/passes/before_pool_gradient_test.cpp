#include "bonfire/passes/before_pool_gradient.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/base/random.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/pooling.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/passes/dead_code.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::before_pool_gradient_test {
namespace {

// The backward pass of max_pool2d(relu(z)) and of a bias in z.
struct Pooled {
  Graph graph;
  GraphValue relu, pixels, dz;

  Pooled() {
    GraphValue z = feed(graph, {2, 4, 8, 8}), dy = feed(graph, {2, 4, 4, 4});
    relu = apply(graph, "relu", {z});
    Attributes window{{"kernel", Shape{2, 2}}, {"stride", Shape{2, 2}}, {"padding", Shape{0, 0}}, {"ceil_mode", 0}};
    GraphValue y = apply(graph, "max_pool2d", {relu}, window);
    pixels = apply(graph, "max_pool2d_gradient", {dy, relu, y}, window);
  }

  void mask_by(GraphValue values) {
    dz = apply(graph, "relu_gradient", {pixels, values});
    GraphValue bias = apply(graph, "sum", {dz}, {{"axes", Shape{0, 2, 3}}, {"keepdim", 0}});
    graph.set_outputs({dz, bias});
  }

  void run() {
    before_pool_gradient()->run(graph, {});
    dead_code()->run(graph, {});
    verify(graph, "before_pool_gradient");
  }

  GraphNode& node_of(size_t output) { return *graph.outputs[output].node; }
};

TEST(BeforePoolGradient, MasksAndSumsTheGradientOfWindows) {
  Pooled pooled;
  pooled.mask_by(pooled.relu);
  pooled.run();
  EXPECT_EQ(pooled.node_of(0).name(), "max_pool2d_gradient");
  GraphNode& mask = *pooled.node_of(0).inputs[0].node;
  EXPECT_EQ(mask.name(), "relu_gradient");
  EXPECT_EQ(mask.outputs[0].shape, Shape({2, 4, 4, 4}));
  EXPECT_EQ(pooled.node_of(1).inputs[0].node, &mask);
  EXPECT_EQ(count(pooled.graph, "max_pool2d_gradient"), 1);
  EXPECT_EQ(count(pooled.graph, "relu_gradient"), 1);
}

TEST(BeforePoolGradient, LeavesAMaskOfOtherValues) {
  Pooled pooled;
  pooled.mask_by(feed(pooled.graph, {2, 4, 8, 8}));
  pooled.run();
  EXPECT_EQ(pooled.node_of(0).name(), "relu_gradient");
}

TEST(BeforePoolGradient, LeavesAGradientThatSomeoneElseNeedsWithoutTheMask) {
  Pooled pooled;
  pooled.mask_by(pooled.relu);
  pooled.graph.add_output(pooled.pixels);
  pooled.run();
  EXPECT_EQ(pooled.node_of(0).name(), "relu_gradient");
}

TEST(BeforePoolGradient, LeavesSumsThatKeepAnAxisOfTheImage) {
  Pooled pooled;
  pooled.graph.set_outputs({apply(pooled.graph, "sum", {pooled.pixels}, {{"axes", Shape{0, 2}}, {"keepdim", 0}})});
  pooled.run();
  EXPECT_EQ(pooled.node_of(0).inputs[0], pooled.pixels);
}

// Overlapping windows, pixels of which most are masked, and one that is NaN.
TEST(BeforePoolGradient, GivesTheSameGradients) {
  const Shape image{2, 3, 7, 7}, windows{2, 3, 4, 4};
  auto numbers = [](const Shape& shape, uint64_t stream, float shift) {
    std::vector<float> values(static_cast<size_t>(shape.count()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = uniform_at(7, stream, i) - shift;
    return values;
  };
  std::vector<float> pixels = numbers(image, 1, 0.8F);
  pixels[20] = NAN;
  Tensor factors = Tensor::from<float>(numbers(windows, 2, 0.5F), windows);
  auto pooled = [&](const Tensor& x) {
    return sum(max_pool2d(x, {.kernel = {3}, .stride = {2}, .padding = {1}}) * factors);
  };

  Tensor x = Tensor::from<float>(pixels, image), bias = Tensor::from<float>({0, 0, 0}, {3, 1, 1});
  x.set_requires_grad(true);
  bias.set_requires_grad(true);
  pooled(relu(x + bias)).backward();

  // The same in two steps: of the pooling alone, then masked by hand.
  Tensor activated = Tensor::from<float>(relu(Tensor::from<float>(pixels, image)).to_vector<float>(), image);
  activated.set_requires_grad(true);
  pooled(activated).backward();
  std::vector<float> expected = activated.grad().to_vector<float>();
  std::vector<double> of_bias(3);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(pixels[i] > 0)) expected[i] = 0;
    of_bias[i / 49 % 3] += expected[i];
  }
  EXPECT_EQ(x.grad().to_vector<float>(), expected);
  for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(bias.grad().to_vector<float>()[c], of_bias[c], 1e-5);
}

}  // namespace
}  // namespace bonfire::passes::before_pool_gradient_test
