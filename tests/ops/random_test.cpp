#include "bonfire/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "bonfire/graph/engine.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/random.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::random_test {
namespace {

double mean_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST(RandomTensors, AreTheStreamOfSeedStepAndOpNumber) {
  manual_seed(11);
  Tensor first = uniform_random({3, 300}), second = normal_random({5});
  std::vector<float> uniform = first.to_vector<float>(), normal = second.to_vector<float>();
  for (size_t i = 0; i < uniform.size(); ++i) EXPECT_EQ(uniform[i], uniform_at(11, random_stream(0, 0), i));
  for (size_t i = 0; i < normal.size(); ++i) EXPECT_EQ(normal[i], normal_at(11, random_stream(0, 1), i));
  std::vector<float> next = uniform_random({4}).to_vector<float>();  // a commit later
  for (size_t i = 0; i < next.size(); ++i) EXPECT_EQ(next[i], uniform_at(11, random_stream(1, 0), i));
}

TEST(RandomTensors, HaveTheirDistribution) {
  manual_seed(5);
  std::vector<float> uniform = uniform_random({20000}).to_vector<float>();
  std::vector<float> normal = normal_random({20000}).to_vector<float>();
  EXPECT_NEAR(mean_of(uniform), 0.5, 0.01);
  EXPECT_NEAR(mean_of(normal), 0, 0.03);
  for (float& value : normal) value *= value;
  EXPECT_NEAR(mean_of(normal), 1, 0.05);
}

TEST(ManualSeed, LeavesWhatWasAskedForBeforeToTheSeedBefore) {
  manual_seed(1);
  Tensor before = uniform_random({4});
  manual_seed(2);
  EXPECT_EQ(before.to_vector<float>()[0], uniform_at(1, random_stream(0, 0), 0));
  EXPECT_EQ(uniform_random({4}).to_vector<float>()[0], uniform_at(2, random_stream(0, 0), 0));
}

TEST(Dropout, DropsTheShareAskedForAndScalesTheRest) {
  manual_seed(3);
  std::vector<float> y = dropout(ones({100, 101}), 0.25).to_vector<float>();
  size_t dropped = 0;
  for (float value : y) {
    if (value == 0)
      ++dropped;
    else
      EXPECT_FLOAT_EQ(value, 1 / 0.75F);
  }
  EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(y.size()), 0.25, 0.015);
}

TEST(Dropout, DrawsTheSameMaskForItsGradient) {
  Tensor x = Tensor::from<float>(std::vector<float>(1000, 1.0F), {1000});
  x.set_requires_grad(true);
  Tensor y = dropout(x, 0.4);
  sum(y).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), y.to_vector<float>());
}

TEST(Dropout, DrawsTheSameMaskForAGradientOfALaterCommit) {
  Tensor x = Tensor::from<float>(std::vector<float>(1000, 1.0F), {1000});
  x.set_requires_grad(true);
  Tensor y = dropout(x, 0.4), total = sum(y);
  std::vector<float> forward = y.to_vector<float>();  // commits the forward pass alone
  uniform_random({1}).item<float>();
  total.backward();
  EXPECT_EQ(x.grad().to_vector<float>(), forward);
}

// Rows 1, 3, 5 of six are rank 1's of 2.
TEST(Dropout, ARankDropsWhatOneWouldDropOfItsRows) {
  for (int64_t size : {1, 7, 300}) {
    manual_seed(4);
    std::vector<float> whole = dropout(ones({6, size}), 0.5).to_vector<float>();
    StepContext::current().random.rank = 1;
    StepContext::current().random.world = 2;
    manual_seed(4);
    std::vector<float> own = dropout(ones({3, size}), 0.5).to_vector<float>();
    StepContext::current().random.rank = 0;
    StepContext::current().random.world = 1;
    for (int64_t i = 0; i < 3 * size; ++i)
      ASSERT_EQ(own[static_cast<size_t>(i)], whole[static_cast<size_t>((2 * (i / size) + 1) * size + i % size)]) << i;
  }
}

// Rows 2 to 4 of six, as a rank has them whose share of a batch is a block.
TEST(Dropout, OfABlockOfRowsIsDroppedWhatOneWouldDrop) {
  for (int64_t size : {1, 7, 300}) {
    manual_seed(4);
    std::vector<float> whole = dropout(ones({6, size}), 0.5).to_vector<float>();
    StepContext::current().random.rank = 2;
    manual_seed(4);
    std::vector<float> own = dropout(ones({3, size}), 0.5).to_vector<float>();
    StepContext::current().random.rank = 0;
    EXPECT_TRUE(std::equal(own.begin(), own.end(), whole.begin() + 2 * size)) << size;
  }
}

TEST(Dropout, DrawsAnotherMaskForEachOpAndEachStep) {
  manual_seed(3);
  Tensor x = ones({200});
  Tensor a = dropout(x, 0.5), b = dropout(x, 0.5);
  std::vector<float> first = a.to_vector<float>();
  EXPECT_NE(first, b.to_vector<float>());
  EXPECT_NE(first, dropout(x, 0.5).to_vector<float>());
  manual_seed(3);
  EXPECT_EQ(first, dropout(x, 0.5).to_vector<float>());
}

TEST(Dropout, IsNothingOutsideTraining) {
  Tensor x = ones({7});
  EXPECT_EQ(dropout(x, 0.5, false).value(), x.value());
}

}  // namespace
}  // namespace bonfire::random_test
