#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "bonfire/graph/op.h"
#include "bonfire/kernel/forced_kernel.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::linear_cross_entropy_test {
namespace {

struct Sizes {
  int64_t rows, depth, classes;
};
constexpr Sizes kSmall{21, 9, 50};
constexpr Sizes kSeveralBlocks{290, 20, 600};   // of rows and of classes
constexpr Sizes kWholeVectors{290, 32, 600};    // a row of the weight is some vectors of every processor
constexpr Sizes kSeveralChunks{600, 3, 15000};  // of rows, when they are small
constexpr Sizes kChunksOfVectors{600, 16, 15000};

// A linear layer and its loss, composed of ops, and the gradients that backward() finds.
struct Composed {
  Tensor x, weight, bias, target, dloss, value;
  CrossEntropyOptions options;

  explicit Composed(const CrossEntropyOptions& wanted, const Sizes& size = kSmall, double bias_offset = 0,
                    int64_t allowed = std::numeric_limits<int64_t>::max())  // classes, of all that there are
      : options(wanted) {
    allowed = std::min(allowed, size.classes);
    x = differentiable({size.rows, size.depth}, 1);
    weight = differentiable({size.classes, size.depth}, 2);
    Numbers biases = draw(floats({size.classes}, -2, 2), 3);
    for (int64_t i = 0; i < size.classes; ++i)
      biases[i] += i < allowed ? bias_offset : -std::numeric_limits<double>::infinity();
    bias = make_tensor(biases, {size.classes}, DType::f32);
    bias.set_requires_grad(true);
    Numbers targets = draw(integers({size.rows}, 0, allowed), 4);
    targets[5] = static_cast<double>(options.ignore_index);
    target = make_tensor(targets, {size.rows}, DType::i64);
    dloss = make_tensor({0.75}, {}, DType::f32);
    // Halved and doubled, which is exact, so that no pass makes the op under test of it.
    Tensor loss = cross_entropy(linear(x, weight * 0.5, bias * 0.5) * 2.0, target, options);
    value = loss.detach();
    (loss * dloss).backward();
  }

  static Tensor differentiable(const Shape& shape, uint64_t salt) {
    Tensor made = make_tensor(draw(floats(shape, -2, 2), salt), shape, DType::f32);
    made.set_requires_grad(true);
    return made;
  }

  // The op under test on the same numbers, as `dtype`: loss, dx, dweight and, with a bias, dbias.
  Tensors fused(DType dtype) const {
    Tensor inputs[] = {cast(x.detach(), dtype), cast(weight.detach(), dtype), bias.detach(), target, dloss};
    return trace_op_all(find_op("linear_cross_entropy"), inputs,
                        {{"label_smoothing", options.label_smoothing},
                         {"ignore_index", options.ignore_index},
                         {"reduction", static_cast<int>(options.reduction)},
                         {"has_bias", true}});
  }
};

void expect_near(const Tensor& found, const Tensor& expected, double tolerance, const char* what) {
  ASSERT_EQ(found.shape(), expected.shape()) << what;
  std::vector<float> a = cast(found, DType::f32).to_vector<float>(), b = expected.to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << what << ", element " << i;
}

void check(const CrossEntropyOptions& options, const Sizes& size, DType dtype, double tolerance, double bias_offset = 0,
           int64_t allowed = std::numeric_limits<int64_t>::max()) {
  runtime::clear_plan_cache();
  Composed composed(options, size, bias_offset, allowed);
  Tensors found = composed.fused(dtype);
  ASSERT_EQ(found.size(), 4U);
  expect_near(found[0], composed.value, tolerance, "loss");
  expect_near(found[1], composed.x.grad(), tolerance, "dx");
  expect_near(found[2], composed.weight.grad(), tolerance, "dweight");
  expect_near(found[3], composed.bias.grad(), tolerance, "dbias");
}

void check(const CrossEntropyOptions& options, DType dtype, double tolerance) {
  for (const Sizes& size : {kSmall, kSeveralBlocks, kWholeVectors}) check(options, size, dtype, tolerance);
}

TEST(LinearCrossEntropy, IsTheLossOfALinearLayerWithItsGradients) {
  check({}, DType::f32, 1e-5);
  check({.reduction = Reduction::sum}, DType::f32, 2e-3);
}

TEST(LinearCrossEntropy, AddsUpWhatChunksOfRowsGive) {
  for (const char* way : {"large_chunks", "small_chunks", "large_chunks_whole"}) {  // the last where f32 is split
    SCOPED_TRACE(way);
    ForcedKernel forced(way);
    for (const Sizes& size : {kSeveralChunks, kChunksOfVectors})
      check({.reduction = Reduction::sum}, size, DType::f32, 2e-3);
  }
}

// Exponentials of which would be infinite, or zero.
TEST(LinearCrossEntropy, TakesLogitsFarFromZero) {
  for (double offset : {-300.0, -60.0, 60.0, 300.0})
    for (const Sizes& size : {kSmall, kSeveralBlocks}) {
      SCOPED_TRACE(offset);
      check({.label_smoothing = 0.1}, size, DType::f32, 2e-4, offset);
      check({}, size, DType::bf16, 3e-2, offset);
    }
}

// As where a vocabulary was filled up to a round number.
TEST(LinearCrossEntropy, ClassesWhoseLogitsAreMinusInfinityTakeNoPart) {
  for (double offset : {-300.0, 0.0})
    for (int64_t allowed : {40, 500, 512}) {
      check({}, kSeveralBlocks, DType::f32, 2e-4, offset, allowed);
      check({}, kSeveralBlocks, DType::bf16, 3e-2, offset, allowed);
    }
}

TEST(LinearCrossEntropy, SmoothsLabels) { check({.label_smoothing = 0.1}, DType::f32, 1e-5); }

TEST(LinearCrossEntropy, TakesBf16AndSumsInF32) { check({}, DType::bf16, 3e-2); }

TEST(LinearCrossEntropy, NamesATargetThatIsNoClass) {
  Composed composed({});
  Numbers targets(kSmall.rows, 1);
  targets[3] = kSmall.classes;
  composed.target = make_tensor(targets, {kSmall.rows}, DType::i64);
  try {
    composed.fused(DType::f32)[0].item();
    FAIL() << "a target beyond the classes was taken";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("target 50 of row 3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace bonfire::op_test::linear_cross_entropy_test
