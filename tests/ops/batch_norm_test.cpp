// What the table of op cases does not reach: running statistics, and the forms that fusion makes.

#include "bonfire/ops/batch_norm.h"

#include <gtest/gtest.h>

#include <array>

#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/elementwise_functions.h"
#include "bonfire/ops/reduce.h"
#include "tests/ops/op_case.h"

namespace bonfire::batch_norm_test {
namespace {

using op_test::draw;
using op_test::floats;
using op_test::make_tensor;
using op_test::Numbers;
using F = ElementwiseFunction;

constexpr double kEps = 1e-5;
const Shape kImages{3, 4, 5, 3};

Tensor random(const Shape& shape, uint64_t salt, double low = -1, double high = 1) {
  return make_tensor(draw(floats(shape, low, high), salt), shape, DType::f32);
}

void expect_near(const Tensor& found, const Tensor& expected, const char* what) {
  std::vector<float> a = found.to_vector<float>(), b = expected.to_vector<float>();
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-5F) << what << ", element " << i;
}

TEST(BatchNorm, RunningStatisticsTakeAShareOfTheBatchWithUnbiasedVariance) {
  Variable mean({{2}, DType::f32, {}}), variance({{2}, DType::f32, {}});
  variance.assign(Tensor::from<float>({1, 1}, {2}));
  // Channel 0 holds 1, 2, 3; channel 1 holds 0, 0, 6.
  Tensor x = Tensor::from<float>({1, 0, 2, 0, 3, 6}, {3, 2});
  batch_norm(x, {}, {}, mean, variance, {.momentum = 0.25});
  EXPECT_EQ(mean.value().to_vector<float>(), (std::vector<float>{0.5F, 0.5F}));
  // Unbiased variances are 1 and 12.
  EXPECT_EQ(variance.value().to_vector<float>(), (std::vector<float>{1.0F, 3.75F}));
}

TEST(BatchNorm, LeavesRunningStatisticsAloneOutsideOfTraining) {
  Variable mean({{2}, DType::f32, {}}), variance({{2}, DType::f32, {}});
  variance.assign(Tensor::from<float>({4, 4}, {2}));
  Tensor y = batch_norm(Tensor::from<float>({2, 4, 6, 8}, {2, 2}), {}, {}, mean, variance, {.training = false});
  std::vector<float> values = y.to_vector<float>();
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(values[i], static_cast<float>(i + 1), 1e-4F);
  EXPECT_EQ(variance.value().to_vector<float>(), (std::vector<float>{4, 4}));
}

TEST(BatchNorm, EmptyBatchChangesNoRunningStatistic) {
  Variable mean({{2}, DType::f32, {}}), variance({{2}, DType::f32, {}});
  variance.assign(Tensor::from<float>({1, 2}, {2}));
  batch_norm(make_tensor({}, {0, 2, 3, 3}, DType::f32), {}, {}, mean, variance);
  EXPECT_EQ(variance.value().to_vector<float>(), (std::vector<float>{1, 2}));
}

TEST(BatchNorm, StatisticsOfBf16AreFullPrecision) {
  Tensor x = random(kImages, 1).to(DType::bf16);
  Tensors statistics = trace_op_all(find_op("batch_norm_statistics"), std::array{x});
  EXPECT_EQ(statistics[0].dtype(), DType::f32);
  EXPECT_EQ(statistics[1].dtype(), DType::f32);
  Tensors exact = trace_op_all(find_op("batch_norm_statistics"), std::array{x.to(DType::f32)});
  expect_near(statistics[0], exact[0], "mean");
  expect_near(statistics[1], exact[1], "variance");
}

// One training step of batch norm by its parts, as the traced ops give it and as the fused ones do.
struct Parts {
  Tensor x = random(kImages, 1), dy = random(kImages, 2), residual = random(kImages, 3);
  Tensor weight = random({4}, 4, 0.5, 1.5), bias = random({4}, 5);
  Tensors statistics = trace_op_all(find_op("batch_norm_statistics"), std::array{x});
  Tensor normalized = trace_op(find_op("batch_norm_normalize"), {x, statistics[0], statistics[1], weight, bias},
                               {{"eps", kEps}, {"training", 1}});

  Tensor activated(F function, bool has_residual) const {
    std::vector<Tensor> inputs{x, statistics[0], statistics[1], weight, bias};
    if (has_residual) inputs.push_back(residual);
    return trace_op(find_op("batch_norm_act"), inputs,
                    {{"eps", kEps}, {"activation", static_cast<int>(function)}, {"has_residual", has_residual}});
  }
};

TEST(BatchNormAct, IsNormalizeThenResidualThenActivation) {
  Parts parts;
  expect_near(parts.activated(F::relu, false), relu(parts.normalized), "relu");
  expect_near(parts.activated(F::relu, true), relu(parts.normalized + parts.residual), "residual, relu");
  expect_near(parts.activated(F::silu, true), silu(parts.normalized + parts.residual), "residual, silu");
  expect_near(parts.activated(F::gelu, false), gelu(parts.normalized), "gelu");
}

// dz by hand, then the plain sums and apply, against the fused forms that find dz themselves.
void check_fused_gradients(const Parts& parts, F function, bool has_residual, const Tensor& dz, const char* name) {
  SCOPED_TRACE(name);
  Tensor mean = parts.statistics[0], variance = parts.statistics[1];
  Tensors sums =
      trace_op_all(find_op("batch_norm_gradient_sums"), std::array{dz, parts.x, mean, variance}, {{"eps", kEps}});
  Tensor dx = trace_op(find_op("batch_norm_gradient_apply"),
                       {dz, parts.x, mean, variance, parts.weight, sums[0], sums[1]}, {{"eps", kEps}, {"count", -1}});

  std::vector<Tensor> inputs{parts.dy, parts.x, mean, variance, parts.weight, parts.bias};
  std::vector<Tensor> with_sums = inputs;
  with_sums.push_back(sums[0]);
  with_sums.push_back(sums[1]);
  if (has_residual) {
    Tensor y = parts.activated(function, true);
    inputs.push_back(y);
    with_sums.push_back(y);
  }
  Attributes attributes{{"eps", kEps}, {"activation", static_cast<int>(function)}, {"has_residual", has_residual}};
  Tensors fused_sums = trace_op_all(find_op("batch_norm_act_gradient_sums"), inputs, attributes);
  attributes.set({"count", -1});
  Tensors fused = trace_op_all(find_op("batch_norm_act_gradient_apply"), with_sums, attributes);
  expect_near(fused_sums[0], sums[0], "sum of dz");
  expect_near(fused_sums[1], sums[1], "sum of dz x̂");
  expect_near(fused[0], dx, "dx");
  ASSERT_EQ(fused.size(), has_residual ? 2U : 1U);
  if (has_residual) expect_near(fused[1], dz, "gradient of the residual");
}

TEST(BatchNormActGradient, RebuildsTheActivationsGradientFromTheInput) {
  Parts parts;
  auto gradient = [&](const char* op, const Tensor& of) { return trace_op(find_op(op), {parts.dy, of}); };
  const Tensor& z = parts.normalized;
  check_fused_gradients(parts, F::relu, false, gradient("relu_gradient", relu(z)), "relu");
  check_fused_gradients(parts, F::tanh, false, gradient("tanh_gradient", tanh(z)), "tanh");
  check_fused_gradients(parts, F::gelu, false, gradient("gelu_gradient", z), "gelu");
  check_fused_gradients(parts, F::silu, false, gradient("silu_gradient", z), "silu");
}

TEST(BatchNormActGradient, TakesItFromTheOutputBesideAResidual) {
  Parts parts;
  Tensor z = parts.normalized + parts.residual;
  check_fused_gradients(parts, F::relu, true, trace_op(find_op("relu_gradient"), {parts.dy, relu(z)}), "relu");
  check_fused_gradients(parts, F::sigmoid, true, trace_op(find_op("sigmoid_gradient"), {parts.dy, sigmoid(z)}),
                        "sigmoid");
}

TEST(BatchNormGradient, CountSpreadsTheSumsOverMoreThanThisBatch) {
  Parts parts;
  Tensor mean = parts.statistics[0], variance = parts.statistics[1];
  Tensors sums =
      trace_op_all(find_op("batch_norm_gradient_sums"), std::array{parts.dy, parts.x, mean, variance}, {{"eps", kEps}});
  auto apply = [&](const Tensor& sum, const Tensor& sum_xhat, int64_t count) {
    return trace_op(find_op("batch_norm_gradient_apply"),
                    {parts.dy, parts.x, mean, variance, parts.weight, sum, sum_xhat},
                    {{"eps", kEps}, {"count", count}});
  };
  expect_near(apply(sums[0] * 2.0, sums[1] * 2.0, 2 * 3 * 5 * 3), apply(sums[0], sums[1], -1), "dx");
}

}  // namespace
}  // namespace bonfire::batch_norm_test
