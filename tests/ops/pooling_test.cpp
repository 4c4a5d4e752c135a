#include "bonfire/ops/pooling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/graph/node.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::pooling_test {
namespace {

TEST(MaxPool, GivesTheWholeGradientToTheFirstOfEqualMaxima) {
  Tensor x = Tensor::from<float>({1, 5, 5, 5, 2, 2, 2, 2}, {1, 2, 2, 2});
  x.set_requires_grad(true);
  sum(max_pool2d(x, {.kernel = {2, 2}})).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 1, 0, 0, 1, 0, 0, 0}));
}

TEST(MaxPool, PassesNaNOn) {
  Tensor x = Tensor::from<float>({1, NAN, 3, 4}, {1, 1, 2, 2});
  EXPECT_TRUE(std::isnan(max_pool2d(x, {.kernel = {2, 2}}).item<float>()));
}

TEST(MaxPool, AWindowOfMinusInfinityKeepsItAndItsGradient) {
  float low = -std::numeric_limits<float>::infinity();
  Tensor x = Tensor::from<float>({low, low, low, low}, {1, 1, 2, 2});
  x.set_requires_grad(true);
  Tensor y = max_pool2d(x, {.kernel = {2, 2}});
  sum(y).backward();
  EXPECT_EQ(y.item<float>(), low);
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{1, 0, 0, 0}));
}

// PyTorch's counts, for (extent, kernel, stride, padding).
TEST(PooledExtent, CountsWindowsAsPyTorchDoes) {
  EXPECT_EQ(pooled_extent(28, 2, 2, 0, false), 14);
  EXPECT_EQ(pooled_extent(7, 3, 2, 1, false), 4);
  EXPECT_EQ(pooled_extent(6, 3, 2, 0, false), 2);
  EXPECT_EQ(pooled_extent(6, 3, 2, 0, true), 3);
  EXPECT_EQ(pooled_extent(3, 2, 2, 1, true), 2);  // a third window would begin in the padding
  EXPECT_EQ(pooled_extent(2, 3, 2, 0, true), 1);  // larger than the input, but reaching past the edge counts
  EXPECT_EQ(pooled_extent(2, 3, 1, 0, false), 0);
}

}  // namespace
}  // namespace bonfire::pooling_test
