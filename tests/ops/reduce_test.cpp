// What the op table does not say about reductions: precision, NaN, ties, threads.

#include "bonfire/ops/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/random.h"
#include "bonfire/graph/op.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::reduce_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_numbers(size_t count) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = uniform_at(3, 0, i);
  return numbers;
}

TEST(Reduce, SumOfTenMillionFloatsKeepsSevenDigits) {
  constexpr int64_t kCount = 10'000'000;
  std::vector<float> numbers = random_numbers(kCount);
  double exact = 0;
  for (float number : numbers) exact += number;
  EXPECT_NEAR(sum(Tensor::from<float>(numbers, {kCount})).item<double>(), exact, exact * 1e-7);
  EXPECT_NEAR(mean(Tensor::from<float>(numbers, {kCount})).item<double>(), exact / kCount, 1e-7);
  Tensor columns = sum(Tensor::from<float>(numbers, {kCount / 2, 2}), {0});
  EXPECT_NEAR(sum(columns).item<double>(), exact, exact * 2e-7);
}

TEST(Reduce, LowPrecisionIsAddedUpInF32) {
  // A sum kept in bf16 would stop at 256, one in f16 at 2048.
  EXPECT_EQ(sum(ones({10000}, DType::bf16)).item<float>(), static_cast<float>(bfloat16(10000.0F)));
  EXPECT_EQ(sum(ones({10000}, DType::f16)).item<float>(), 10000);
  EXPECT_EQ(mean(ones({3, 10000}, DType::bf16), {1}).to_vector<float>()[2], 1);
  EXPECT_EQ(sum(ones({10000, 2}, DType::f16), {0}).to_vector<float>()[1], 10000);
}

TEST(Reduce, NaNWinsMaxAndMin) {
  std::vector<float> numbers(100, 1.0F);
  for (size_t place : {0, 31, 32, 99}) {
    numbers[place] = kNaN;
    EXPECT_TRUE(std::isnan(max(Tensor::from<float>(numbers, {100})).item<float>())) << place;
    EXPECT_TRUE(std::isnan(min(Tensor::from<float>(numbers, {50, 2}), {0}).to_vector<float>()[place % 2])) << place;
    numbers[place] = 1.0F;
  }
}

TEST(Reduce, NaNIsTheFirstOfArgmaxAndTopK) {
  Tensor x = Tensor::from<float>({1, kNaN, 3, kNaN}, {4});
  EXPECT_EQ(argmax(x, 0).item<int64_t>(), 1);
  EXPECT_EQ(argmin(x, 0).item<int64_t>(), 1);
  EXPECT_EQ(top_k(x, 3).indices.to_vector<int64_t>(), (std::vector<int64_t>{1, 3, 2}));
}

TEST(Reduce, MeanOfNothingIsNaN) { EXPECT_TRUE(std::isnan(mean(zeros({0})).item<float>())); }

TEST(Reduce, SumKeepsInfinity) {
  float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum(Tensor::from<float>({1, infinity, 2}, {3})).item<float>(), infinity);
}

// torch.amax: [[1, 3, 3], [2, 2, 2]] over the last axis.
TEST(ReduceGradient, OfMaxIsSharedByTies) {
  Tensor x = Tensor::from<float>({1, 3, 3, 2, 2, 2}, {2, 3});
  x.set_requires_grad(true);
  std::vector<float> gradient = grad(sum(max(x, {1})), {{x}})[0].to_vector<float>();
  const float third = 1.0F / 3.0F;
  EXPECT_EQ(gradient, (std::vector<float>{0, 0.5F, 0.5F, third, third, third}));
}

TEST(SumAsF32, IsNotRoundedToTheTypeOfItsInput) {
  Tensor x = cast(Tensor::from<float>(random_numbers(64 * 300), {64, 300}), DType::bf16);
  Attributes rows{{"axes", Shape{0}}, {"keepdim", 0}};
  Tensor found = trace_op(find_op("sum_as_f32"), {x}, rows);
  EXPECT_EQ(found.spec(), (TensorSpec{{300}, DType::f32, {}}));
  EXPECT_EQ(found.to_vector<float>(), sum(cast(x, DType::f32), {0}).to_vector<float>());
}

TEST(SumTo, UndoesBroadcastingAndCasts) {
  Tensor x = ones({2, 3, 4});
  Tensor result = sum_to(x, {{3, 1}, DType::f64, {}});
  EXPECT_EQ(result.spec(), (TensorSpec{{3, 1}, DType::f64, {}}));
  EXPECT_EQ(result.to_vector<double>(), std::vector<double>(3, 8.0));
}

}  // namespace
}  // namespace bonfire::reduce_test
