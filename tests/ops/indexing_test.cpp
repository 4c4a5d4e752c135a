#include "bonfire/ops/indexing.h"

#include <gtest/gtest.h>

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::indexing_test {
namespace {

TEST(Embedding, PaddingRowGetsNoGradient) {
  Tensor weight = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  weight.set_requires_grad(true);
  Tensor ids = Tensor::from<int64_t>({0, 2, 0, 1}, {4});
  Tensor rows = embedding(weight, ids, {.padding_index = 0});
  EXPECT_EQ(rows.to_vector<float>(), (std::vector<float>{1, 2, 5, 6, 1, 2, 3, 4}));
  EXPECT_EQ(grad(sum(rows), {{weight}})[0].to_vector<float>(), (std::vector<float>{0, 0, 1, 1, 1, 1}));
}

TEST(Embedding, GradientAddsRepeatedRowsInF32) {
  constexpr int64_t kRepeats = 1000;  // in bf16 a running sum of ones stops at 256
  Tensor weight = Tensor::from<bfloat16>(std::vector<bfloat16>(4, bfloat16(0.0F)), {2, 2});
  weight.set_requires_grad(true);
  Tensor ids = zeros({kRepeats}, DType::i64);
  std::vector<float> gradient = grad(sum(embedding(weight, ids)), {{weight}})[0].to_vector<float>();
  EXPECT_EQ(gradient, (std::vector<float>{1000, 1000, 0, 0}));
}

TEST(Embedding, GradientOfManyIdsIsThatOfALoop) {
  constexpr int64_t kRows = 37, kColumns = 70, kIds = 3000;
  std::vector<int64_t> ids(kIds);
  std::vector<float> values(kIds * kColumns), expected(kRows * kColumns);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = philox(5, 0, i).word[0] % kRows;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = uniform_at(6, 0, i);
    expected[static_cast<size_t>(ids[i / kColumns]) * kColumns + i % kColumns] += values[i];
  }
  Tensor weight = Tensor::from<float>(std::vector<float>(expected.size()), {kRows, kColumns});
  weight.set_requires_grad(true);
  Tensor rows = embedding(weight, Tensor::from<int64_t>(ids, {kIds}));
  Tensor gradient = grad(sum(rows * Tensor::from<float>(values, {kIds, kColumns})), {{weight}})[0];
  EXPECT_EQ(gradient.to_vector<float>(), expected);  // the same order, so the same bits
}

TEST(Gather, IndexOutOfRangeIsToldOnceAndTheNextStepRuns) {
  Tensor index = Tensor::from<int64_t>({5}, {1});
  EXPECT_THROW(gather(zeros({3}), 0, index).to_vector<float>(), DataError);
  EXPECT_EQ(sum(ones({3})).item<float>(), 3);
}

}  // namespace
}  // namespace bonfire::indexing_test
