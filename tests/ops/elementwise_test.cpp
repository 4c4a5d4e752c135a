// What the op table does not say about elementwise ops: type rules, NaN, integers, ties. Literals are PyTorch's.

#include "bonfire/ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bonfire/autodiff/backward.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::elementwise_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using D = DType;
constexpr DType kTypes[] = {D::f32, D::f64, D::bf16, D::f16, D::i32, D::i64, D::u8, D::boolean};

Tensor floats(std::initializer_list<float> values) {
  return Tensor::from<float>(values, {static_cast<int64_t>(values.size())});
}
Tensor integers(std::initializer_list<int64_t> values) {
  return Tensor::from<int64_t>(values, {static_cast<int64_t>(values.size())});
}

// Equal, with NaN equal to NaN.
void expect_values(const Tensor& found, const std::vector<float>& expected) {
  std::vector<float> values = found.to_vector<float>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << "element " << i << " is " << values[i];
    } else {
      EXPECT_EQ(values[i], expected[i]) << "element " << i;
    }
  }
}

Tensor gradient_of(Tensor (*function)(const Tensor&), Tensor x) {
  x.set_requires_grad(true);
  return grad(sum(function(x)), {{x}})[0];
}

// (torch.ones(2, dtype=a) + torch.ones(2, dtype=b)).dtype
TEST(ElementwiseTypes, OfTwoTensorsPromoteAsInPyTorch) {
  const DType expected[8][8] = {
      {D::f32, D::f64, D::f32, D::f32, D::f32, D::f32, D::f32, D::f32},
      {D::f64, D::f64, D::f64, D::f64, D::f64, D::f64, D::f64, D::f64},
      {D::f32, D::f64, D::bf16, D::f32, D::bf16, D::bf16, D::bf16, D::bf16},
      {D::f32, D::f64, D::f32, D::f16, D::f16, D::f16, D::f16, D::f16},
      {D::f32, D::f64, D::bf16, D::f16, D::i32, D::i64, D::i32, D::i32},
      {D::f32, D::f64, D::bf16, D::f16, D::i64, D::i64, D::i64, D::i64},
      {D::f32, D::f64, D::bf16, D::f16, D::i32, D::i64, D::u8, D::u8},
      {D::f32, D::f64, D::bf16, D::f16, D::i32, D::i64, D::u8, D::boolean},
  };
  for (int a = 0; a < 8; ++a)
    for (int b = 0; b < 8; ++b) {
      Tensor result = ones({2}, kTypes[a]) + ones({2}, kTypes[b]);
      EXPECT_EQ(name_of(result.dtype()), name_of(expected[a][b])) << name_of(kTypes[a]) << " + " << name_of(kTypes[b]);
      EXPECT_EQ(result.to_vector<float>()[1], result.dtype() == D::boolean ? 1 : 2);
    }
}

// (torch.ones(2, dtype=a) + torch.ones((), dtype=b)).dtype
TEST(ElementwiseTypes, OfATensorAreWidenedByAScalarOnlyAcrossCategories) {
  const DType expected[8][8] = {
      {D::f32, D::f32, D::f32, D::f32, D::f32, D::f32, D::f32, D::f32},
      {D::f64, D::f64, D::f64, D::f64, D::f64, D::f64, D::f64, D::f64},
      {D::bf16, D::bf16, D::bf16, D::bf16, D::bf16, D::bf16, D::bf16, D::bf16},
      {D::f16, D::f16, D::f16, D::f16, D::f16, D::f16, D::f16, D::f16},
      {D::f32, D::f64, D::bf16, D::f16, D::i32, D::i32, D::i32, D::i32},
      {D::f32, D::f64, D::bf16, D::f16, D::i64, D::i64, D::i64, D::i64},
      {D::f32, D::f64, D::bf16, D::f16, D::u8, D::u8, D::u8, D::u8},
      {D::f32, D::f64, D::bf16, D::f16, D::i32, D::i64, D::u8, D::boolean},
  };
  for (int a = 0; a < 8; ++a)
    for (int b = 0; b < 8; ++b)
      EXPECT_EQ(name_of((ones({2}, kTypes[a]) + ones({}, kTypes[b])).dtype()), name_of(expected[a][b]))
          << name_of(kTypes[a]) << " + " << name_of(kTypes[b]) << " of rank 0";
}

TEST(ElementwiseTypes, BesideNumbersStayInTheirCategory) {
  for (DType dtype : {D::f32, D::f64, D::bf16, D::f16}) {
    EXPECT_EQ((ones({2}, dtype) + 1).dtype(), dtype);
    EXPECT_EQ((ones({2}, dtype) + 1.5).dtype(), dtype);
    EXPECT_EQ((ones({}, dtype) + 1.5).dtype(), dtype);
  }
  for (DType dtype : {D::i32, D::i64, D::u8}) {
    EXPECT_EQ((ones({2}, dtype) + 1).dtype(), dtype);
    EXPECT_EQ((ones({2}, dtype) + 1.5).dtype(), D::f32);
    EXPECT_EQ((ones({2}, dtype) / 2).dtype(), D::f32);
  }
  EXPECT_EQ((ones({2}, D::boolean) + 1).dtype(), D::i64);
  EXPECT_EQ(exp(integers({0, 1})).dtype(), D::f32);
  EXPECT_EQ(where(ones({1}, D::boolean), integers({1}), floats({1.5F})).dtype(), D::f32);
  EXPECT_EQ(maximum(integers({1}), floats({1.5F})).dtype(), D::f32);
}

TEST(Elementwise, NumberBesideLowPrecisionIsNotRoundedFirst) {
  Tensor nine = ones({1}, D::bf16) * 9;
  EXPECT_EQ((nine * 0.1).item<float>(), 0.8984375F);  // with 0.1 as bf16 it would be 0.90234375
}

TEST(Elementwise, NaNPassesThroughReluMaximumMinimumAndClamp) {
  Tensor x = floats({kNaN, -1, 0, 2});
  Tensor y = floats({1, kNaN, kNaN, 1});
  expect_values(relu(x), {kNaN, 0, 0, 2});
  expect_values(maximum(x, y), {kNaN, kNaN, kNaN, 2});
  expect_values(minimum(x, y), {kNaN, kNaN, kNaN, 1});
  expect_values(clamp(x, -0.5, 0.5), {kNaN, -0.5, 0, 0.5});
  expect_values(absolute(floats({kNaN, -kInfinity})), {kNaN, kInfinity});
}

TEST(Elementwise, NaNIsUnequalToItself) {
  Tensor x = floats({kNaN, 1});
  EXPECT_EQ(equal(x, x).to_vector<bool>(), (std::vector<bool>{false, true}));
  EXPECT_EQ(not_equal(x, x).to_vector<bool>(), (std::vector<bool>{true, false}));
  EXPECT_EQ(less_equal(x, x).to_vector<bool>(), (std::vector<bool>{false, true}));
}

TEST(Elementwise, DivisionOfIntegersIsTrueDivision) {
  expect_values(integers({7, -7, 1}) / integers({2, 2, 0}), {3.5, -3.5, kInfinity});
}

TEST(Elementwise, IntegersAreExactBeyondDoubles) {
  int64_t large = (int64_t{1} << 62) + 1;
  EXPECT_EQ((integers({large}) + integers({1})).item<int64_t>(), large + 1);
  EXPECT_EQ((integers({large}) - 1).item<int64_t>(), large - 1);
  int64_t odd = (int64_t{1} << 53) + 1;
  EXPECT_FALSE(equal(integers({odd}), integers({odd - 1})).item<bool>());
  EXPECT_TRUE(greater(integers({odd}), integers({odd - 1})).item<bool>());
}

TEST(Elementwise, NarrowIntegersWrap) {
  EXPECT_EQ((Tensor::from<uint8_t>({250}, {1}) + Tensor::from<uint8_t>({10}, {1})).item<int32_t>(), 4);
  EXPECT_EQ((-Tensor::from<uint8_t>({1}, {1})).item<int32_t>(), 255);
  EXPECT_EQ((Tensor::from<int32_t>({std::numeric_limits<int32_t>::max()}, {1}) + 1).item<int64_t>(),
            std::numeric_limits<int32_t>::min());
}

TEST(Elementwise, PowerOfIntegersIsAnInteger) {
  Tensor result = pow(integers({2, -3, 7}), integers({10, 3, 0}));
  EXPECT_EQ(result.dtype(), D::i64);
  expect_values(result, {1024, -27, 1});
}

TEST(Elementwise, CastTruncatesTowardsZeroAndTakesNaNForTrue) {
  expect_values(cast(floats({2.5, 3.5, -2.5}), D::i64), {2, 3, -2});
  EXPECT_EQ(cast(floats({kNaN, 0, 0.1F}), D::boolean).to_vector<bool>(), (std::vector<bool>{true, false, true}));
}

TEST(Elementwise, SaturatingFunctionsStayFinite) {
  expect_values(sigmoid(floats({-1000, 1000})), {0, 1});
  expect_values(silu(floats({-1000, 1000})), {-0.0F, 1000});
  expect_values(tanh(floats({-1000, 1000})), {-1, 1});
  expect_values(gelu(floats({-1000, 1000})), {-0.0F, 1000});
  expect_values(gradient_of(sigmoid, floats({-1000, 1000})), {0, 0});
  expect_values(gradient_of(silu, floats({-1000, 1000})), {0, 1});
}

TEST(ElementwiseGradient, OfReluAndAbsoluteIsZeroAtZero) {
  expect_values(gradient_of(relu, floats({0, -1, 1})), {0, 0, 1});
  expect_values(gradient_of(absolute, floats({0, -3, 1})), {0, -1, 1});
}

TEST(ElementwiseGradient, IsSharedByTies) {
  Tensor x = floats({1, 2, 3}), y = floats({1, 5, 2});
  x.set_requires_grad(true);
  y.set_requires_grad(true);
  std::vector<Tensor> gradients = grad(sum(maximum(x, y)), {{x, y}});
  expect_values(gradients[0], {0.5, 0, 1});
  expect_values(gradients[1], {0.5, 1, 0});
}

TEST(ElementwiseGradient, OfPowerIsFiniteAtZero) {
  expect_values(gradient_of([](const Tensor& x) { return pow(x, 2.0); }, floats({0, -2, 3})), {0, -4, 6});
  expect_values(gradient_of([](const Tensor& x) { return pow(x, 0.0); }, floats({0, 2})), {0, 0});
  Tensor exponent = gradient_of([](const Tensor& e) { return pow(floats({0, 2}), e); }, floats({2, 3}));
  EXPECT_EQ(exponent.to_vector<float>()[0], 0);
  EXPECT_NEAR(exponent.to_vector<float>()[1], 5.5452, 1e-3);
}

TEST(ElementwiseGradient, HasTheTypeOfItsInput) {
  Tensor low = ones({2, 3}, D::bf16), bias = ones({3}, D::f32);
  low = Tensor::from<bfloat16>(low.to_vector<bfloat16>(), {2, 3});
  bias = Tensor::from<float>(bias.to_vector<float>(), {3});
  low.set_requires_grad(true);
  bias.set_requires_grad(true);
  std::vector<Tensor> gradients = grad(sum(low * bias), {{low, bias}});
  EXPECT_EQ(gradients[0].spec(), low.spec());
  EXPECT_EQ(gradients[1].spec(), bias.spec());
  expect_values(gradients[1], {2, 2, 2});
}

TEST(Elementwise, ScalarIsReadAtEachSubmission) {
  Scalar factor(2.0);
  Tensor x = floats({1, 3});
  expect_values(x * factor, {2, 6});
  factor.set(0.5);
  expect_values(x * factor, {0.5, 1.5});
}

}  // namespace
}  // namespace bonfire::elementwise_test
