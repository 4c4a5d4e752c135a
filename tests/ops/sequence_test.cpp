// Softmax, losses, layer norm, LSTM and attention: what the table of op cases does not say. Numbers called PyTorch's
// were printed by PyTorch 2.15 in f64 for the inputs of `ramp`.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bonfire/graph/op.h"
#include "bonfire/ops/attention.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/layer_norm.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/lstm.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/ops/softmax.h"

namespace bonfire::sequence_test {
namespace {

using Numbers = std::vector<double>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// scale · (((start + i) · step mod period) / period − 1/2) + shift, as f64.
struct Ramp {
  int64_t step, period;
  double scale = 1, shift = 0;
  int64_t start = 0;
};
Tensor ramp(const Shape& shape, Ramp r) {
  Numbers values;
  for (int64_t i = 0; i < shape.count(); ++i)
    values.push_back(
        r.scale * (static_cast<double>((r.start + i) * r.step % r.period) / static_cast<double>(r.period) - 0.5) +
        r.shift);
  return Tensor::from<double>(values, shape);
}
Tensor leaf(const Shape& shape, Ramp r) { return ramp(shape, r).set_requires_grad(true); }

void expect_near(const Tensor& found, const Numbers& expected, double tolerance = 1e-9) {
  Numbers values = found.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], tolerance) << "element " << i;
}

TEST(Softmax, DoesNotOverflow) {
  Tensor x = Tensor::from<float>({1e4F, 1e4F, -1e4F, -kInfinity}, {1, 4});
  EXPECT_EQ(softmax(x, 1).to_vector<float>(), (std::vector<float>{0.5F, 0.5F, 0, 0}));
  EXPECT_FLOAT_EQ(log_softmax(x, 1).to_vector<float>()[2], -2e4F - std::log(2.0F));
}

TEST(CrossEntropy, IsPyTorchs) {
  Tensor logits = leaf({3, 4}, {7, 11, 4});
  Tensor loss = cross_entropy(logits, Tensor::from<int64_t>({2, -100, 0}, {3}), {.label_smoothing = 0.1});
  loss.backward();
  expect_near(loss, {2.806860179});
  expect_near(logits.grad(), {-0.003355817478, 0.1040793821, -0.4352779589, 0.3345543943, 0, 0, 0, 0, -0.4337992457,
                              0.3534065422, 0.07294154834, 0.007451155122});
}

TEST(CrossEntropy, OfNoTargetsIsNotANumber) {
  Tensor logits = leaf({2, 3}, {7, 11});
  Tensor loss = cross_entropy(logits, Tensor::from<int64_t>({-100, -100}, {2}));
  loss.backward();
  EXPECT_TRUE(std::isnan(loss.item()));
  expect_near(logits.grad(), Numbers(6, 0.0));
}

TEST(CrossEntropy, OfLargeLogitsIsExact) {
  Tensor logits = Tensor::from<float>({3000, 2999, -3000}, {1, 3});
  EXPECT_NEAR(cross_entropy(logits, Tensor::from<int64_t>({0}, {1})).item(), std::log1p(std::exp(-1)), 1e-6);
}

TEST(Losses, ArePyTorchs) {
  Tensor a = ramp({6}, {5, 7, 3}), b = ramp({6}, {3, 11, 3});
  expect_near(mse_loss(a, b), {1.942486085});
  expect_near(smooth_l1_loss(a, b, {.beta = 0.7}), {0.8274576537});
}

TEST(TopKCorrect, CountsAlsoInIntegersAndTies) {
  Tensor logits = Tensor::from<float>({1, 1, 0, 3, 2, 1}, {2, 3});
  Tensor target = Tensor::from<int64_t>({1, 1}, {2});
  EXPECT_EQ(top_k_correct(logits, target, 1).item<int64_t>(), 0);
  EXPECT_EQ(top_k_correct(logits, target, 2).item<int64_t>(), 2);
}

TEST(LayerNorm, IsPyTorchs) {
  Tensor x = leaf({2, 4}, {5, 13}), weight = leaf({4}, {3, 7, 1, 1}), bias = leaf({4}, {2, 5});
  Tensor y = layer_norm(x, weight, bias);
  sum(y * ramp({2, 4}, {3, 11})).backward();
  expect_near(y, {-1.064131217, 0.08488333986, 2.371641526, -0.7693192473, -0.6714815387, 1.173862859, -1.561799563,
                  -0.0305290106});
  expect_near(x.grad(), {-0.5539557169, -0.631230538, 0.0982583058, 1.086927949, -1.201891255, -0.3819785585,
                         0.2516971297, 1.332172684});
  expect_near(weight.grad(), {0.7044342936, -0.2323219366, -0.1176856466, -0.04975182469});
  expect_near(bias.grad(), {-0.9090909091, -0.3636363636, 0.1818181818, 0.7272727273});
}

TEST(LayerNorm, TakesBf16BesideF32Weights) {
  Tensor x = ramp({3, 40}, {5, 13}).to(DType::bf16), weight = ramp({40}, {3, 7, 1, 1}).to(DType::f32);
  Tensor bias = ramp({40}, {2, 5}).to(DType::f32);
  weight = weight.detach().set_requires_grad(true);
  Tensor y = layer_norm(x, weight, bias);
  EXPECT_EQ(y.dtype(), DType::bf16);
  sum(y.to(DType::f32)).backward();
  Tensor exact = layer_norm(x.to(DType::f32), weight.detach(), bias);
  expect_near(y, exact.to_vector<double>(), 0.02);
  EXPECT_EQ(weight.grad().dtype(), DType::f32);
}

TEST(Lstm, IsPyTorchs) {
  std::vector<Tensor> p;
  for (const Shape& shape :
       {Shape{8, 3}, Shape{8, 2}, Shape{8}, Shape{8}, Shape{8, 2}, Shape{8, 2}, Shape{8}, Shape{8}})
    p.push_back(leaf(shape, {.step = 7, .period = 17, .start = static_cast<int64_t>(p.size())}));
  LstmWeights layers[] = {{p[0], p[1], p[2], p[3]}, {p[4], p[5], p[6], p[7]}};
  Tensor x = leaf({2, 2, 3}, {5, 13});
  LstmResult result = lstm(x, layers, {}, {}, {.batch_first = true});
  sum(result.output * ramp({2, 2, 2}, {3, 11})).backward();
  expect_near(result.output, {-0.1052868615, 0.1259566317, -0.1382073568, 0.1813743116, -0.1084228883, 0.1224731771,
                              -0.1463280394, 0.1772728243});
  expect_near(result.h, {0.108038509, 0.03348630776, 0.0658320093, 0.1131850759, -0.1382073568, 0.1813743116,
                         -0.1463280394, 0.1772728243});
  expect_near(result.c, {0.2274767313, 0.07766290856, 0.1198843491, 0.2774381588, -0.2423596932, 0.3695943611,
                         -0.2620132614, 0.354951322});
  expect_near(x.grad(),
              {-0.005530572251, 0.001627132106, -0.003614264675, 0.001485399191, -0.0002547646195, 0.001168305808,
               -0.001371539228, 0.0006281391983, -3.147941752e-05, 0.003303201549, -0.0007314301608, 0.00264287647});
  Numbers expected = {0.019158268470, 0.0021431124339, 0.016496347504, 0.016496347504,
                      0.064075941853, 0.077242219143,  0.473477409957, 0.473477409957};
  for (size_t i = 0; i < p.size(); ++i) expect_near(sum(absolute(p[i].grad())), {expected[i]});
}

TEST(Lstm, GivesTheSameBeginningHoweverLongTheSequence) {
  Tensor w_ih = ramp({16, 3}, {7, 17}), w_hh = ramp({16, 4}, {5, 13});
  LstmWeights layers[] = {{w_ih, w_hh, {}, {}}};
  Numbers shorter = lstm(ramp({70, 2, 3}, {5, 13}), layers).output.to_vector<double>();
  Numbers longer = lstm(ramp({200, 2, 3}, {5, 13}), layers).output.to_vector<double>();
  longer.resize(shorter.size());
  EXPECT_EQ(shorter, longer);  // the future does not change the past
}

// In parts, each of which begins with the states that the one before it has ended with; c is carried in f32. Gradients
// go the other way.
TEST(Lstm, HasTheSameBitsInParts) {
  const Op &layer = find_op("lstm_layer"), &gradient = find_op("lstm_layer_gradient");
  constexpr int64_t kCut = 4, kTimes = 9;
  for (DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Tensor projected = ramp({kTimes, 3, 20}, {5, 13, 3}).to(dtype), dy = ramp({kTimes, 3, 5}, {3, 11}).to(dtype);
    const Tensor h0 = ramp({3, 5}, {2, 7}).to(dtype), c0 = ramp({3, 5}, {3, 5}).to(dtype);
    const Tensor w = ramp({20, 5}, {5, 17}).to(dtype);
    const auto part = [](const Tensor& x, bool is_first) {
      return is_first ? slice(x, 0, 0, kCut) : slice(x, 0, kCut, kTimes);
    };
    const auto bits = [](const Tensor& x) { return x.to_vector<double>(); };
    const Tensors all = trace_op_all(layer, {projected, h0, c0, w});
    const Tensors first = trace_op_all(layer, {part(projected, true), h0, c0.to(wide), w});
    const Tensors second = trace_op_all(layer, {part(projected, false), first[1], first[2], w});
    EXPECT_EQ(first[2].dtype(), wide);
    EXPECT_EQ(bits(concat({first[0], second[0]}, 0)), bits(all[0]));
    EXPECT_EQ(bits(second[1]), bits(all[1]));
    EXPECT_EQ(bits(second[2].to(dtype)), bits(all[2]));

    const auto has = [](bool states) { return Attributes{{"has_dy", 1}, {"has_dh", states}, {"has_dc", states}}; };
    const Tensors of_all = trace_op_all(gradient, {w, c0, all[3], all[4], dy}, has(false));
    const Tensors of_second = trace_op_all(gradient, {w, first[2], second[3], second[4], part(dy, false)}, has(false));
    const Tensors of_first = trace_op_all(
        gradient, {w, c0.to(wide), first[3], first[4], part(dy, true), of_second[1], of_second[2]}, has(true));
    EXPECT_EQ(of_first[1].dtype(), wide);
    EXPECT_EQ(bits(concat({of_first[0], of_second[0]}, 0)), bits(of_all[0]));
    EXPECT_EQ(bits(of_first[1].to(dtype)), bits(of_all[1]));
    EXPECT_EQ(bits(of_first[2].to(dtype)), bits(of_all[2]));
  }
}

TEST(Attention, IsPyTorchs) {
  Tensor q = leaf({1, 2, 3, 2}, {5, 13}), k = leaf({1, 2, 3, 2}, {7, 11}), v = leaf({1, 2, 3, 2}, {3, 7});
  Tensor y = scaled_dot_product_attention(q, k, v, {.causal = true});
  sum(y * ramp({1, 2, 3, 2}, {4, 9})).backward();
  expect_near(y, {-0.5, -0.07142857143, -0.07460731485, -0.1423273523, 0.02693021089, -0.2088142129, 0.07142857143,
                  -0.5, -0.007478002274, -0.02656055779, -0.0701691894, -0.002586996656});
  expect_near(q.grad(), {0, 0, 0.01721756204, 0.01721756204, 0.01729343594, -0.00231443339, 0, 0, 0.05550449149,
                         -0.02081418431, -0.03109894176, -0.002710624774});
  expect_near(k.grad(),
              {-0.01868149314, 0.003321699763, 0.01792734432, -0.01161733679, 0.0007541488203, 0.008295637024,
               -0.05007567573, 0.01089900369, 0.04211539564, -0.004707674735, 0.007960280087, -0.006191328957});
  expect_near(v.grad(), {-0.2108677513, -0.2327525745, 0.2949278519, -0.1846408594, 0.08260656611, -0.08260656611,
                         0.1714813749, -0.4723311781, 0.01475048963, -0.164625207, -0.01956519787, 0.1369563851});
}

struct Length {
  int64_t queries, keys;
  bool causal;
};
class AttentionBlocks : public ::testing::TestWithParam<Length> {};

// Several blocks of queries and keys, whole and cut off, against the whole matrix of scores.
TEST_P(AttentionBlocks, JoinSeamlessly) {
  auto [queries, keys, causal] = GetParam();
  auto inputs = [queries = queries, keys = keys] {
    return std::vector<Tensor>{leaf({1, 2, queries, 5}, {5, 131, 8}), leaf({1, 2, keys, 5}, {7, 113, 8}),
                               leaf({1, 2, keys, 3}, {11, 71})};
  };
  std::vector<Tensor> a = inputs(), b = inputs();
  Tensor scores = matmul(b[0], b[1], {.transpose_b = true}) * (1 / std::sqrt(5.0));
  if (causal) {
    Tensor t = arange(0, queries), s = arange(0, keys);
    Tensor hidden = less(Tensor::from<int64_t>(t.to_vector<int64_t>(), {queries, 1}), s);
    scores = where(hidden, -std::numeric_limits<double>::infinity(), scores);
  }
  Tensor expected = matmul(softmax(scores, -1), b[2]);
  Tensor found = scaled_dot_product_attention(a[0], a[1], a[2], {.causal = causal});
  expect_near(found, expected.to_vector<double>(), 1e-12);
  Tensor weight = ramp(found.shape(), {13, 37});
  sum(found * weight).backward();
  sum(expected * weight).backward();
  for (size_t i = 0; i < 3; ++i) expect_near(a[i].grad(), b[i].grad().to_vector<double>(), 1e-12);
}
INSTANTIATE_TEST_SUITE_P(Lengths, AttentionBlocks,
                         ::testing::Values(Length{65, 129, false}, Length{128, 256, false}, Length{150, 300, true},
                                           Length{300, 150, true}, Length{1, 260, false}));

// Types that processors multiply in their own ways, in blocks as wide as those are for, against f64.
TEST(Attention, OfF32AndBf16IsThatOfF64ButForRounding) {
  auto inputs = [] {
    return std::vector<Tensor>{leaf({1, 2, 150, 48}, {5, 131, 8}), leaf({1, 2, 170, 48}, {7, 113, 8}),
                               leaf({1, 2, 170, 32}, {11, 71})};
  };
  std::vector<Tensor> expected = inputs();
  Tensor y = scaled_dot_product_attention(expected[0], expected[1], expected[2], {.causal = true});
  Tensor weight = ramp(y.shape(), {13, 37});
  sum(y * weight).backward();
  for (auto [type, tolerance] : {std::pair{DType::f32, 2e-5}, {DType::bf16, 0.05}}) {
    std::vector<Tensor> x = inputs();
    Tensor found =
        cast(scaled_dot_product_attention(cast(x[0], type), cast(x[1], type), cast(x[2], type), {.causal = true}),
             DType::f64);
    sum(found * weight).backward();
    expect_near(found, y.to_vector<double>(), tolerance);
    for (size_t i = 0; i < 3; ++i) expect_near(x[i].grad(), expected[i].grad().to_vector<double>(), tolerance);
  }
}

// The same weights are dropped as by dropout() over the whole matrix.
TEST(Attention, DropsWeightsOfTheMixture) {
  const int64_t queries = 67, keys = 131;
  std::vector<Tensor> a, b;
  for (std::vector<Tensor>* list : {&a, &b})
    *list = {leaf({1, 2, queries, 5}, {5, 131, 8}), leaf({1, 2, keys, 5}, {7, 113, 8}),
             leaf({1, 2, keys, 3}, {11, 71})};
  manual_seed(9);
  Tensor found = scaled_dot_product_attention(a[0], a[1], a[2], {.scale = 0.5, .dropout = 0.3});
  Tensor weight = ramp(found.shape(), {13, 37});
  sum(found * weight).backward();
  Numbers values = found.to_vector<double>();
  manual_seed(9);
  Tensor expected = matmul(dropout(softmax(matmul(b[0], b[1], {.transpose_b = true}) * 0.5, -1), 0.3), b[2]);
  sum(expected * weight).backward();
  expect_near(expected, values, 1e-12);
  for (size_t i = 0; i < 3; ++i) expect_near(a[i].grad(), b[i].grad().to_vector<double>(), 1e-12);
}

TEST(Attention, OfAQueryThatSeesNothingIsZero) {
  Tensor q = leaf({1, 1, 2, 3}, {5, 13}), k = leaf({1, 1, 2, 3}, {7, 11}), v = leaf({1, 1, 2, 3}, {3, 7});
  Tensor mask = Tensor::from<float>({-kInfinity, -kInfinity, 0, 0}, {2, 2});
  Tensor y = scaled_dot_product_attention(q, k, v, {.mask = mask});
  sum(y).backward();
  std::vector<double> values = y.to_vector<double>(), dq = q.grad().to_vector<double>();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(values[i], 0);
    EXPECT_NE(values[3 + i], 0);
    EXPECT_EQ(dq[i], 0);
  }
  for (double value : k.grad().to_vector<double>()) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace bonfire::sequence_test
