#include "bonfire/ops/bit_hash.h"

#include <gtest/gtest.h>

#include <cstring>

#include "bonfire/base/error.h"
#include "tests/ops/op_case.h"
#include "tests/support/expect_error.h"

namespace bonfire::op_test::bit_hash_test {
namespace {

[[maybe_unused]] const bool added = add_op_cases({
    {.name = "bit_hash/types",
     .inputs = {integers({70, 1001}, -1000, 1000, DType::i32), integers({3}, 0, 200, DType::u8)},
     .call = [](const Inputs& x) { return bit_hash(x); },
     .shapes = {{2}},
     .dtypes = {DType::i64},
     .differentiable = false,
     .runs_in_bf16 = false,
     .cuda_tolerance = 0},
});

std::vector<int64_t> hash(const std::vector<float>& values) {
  const Tensor tensors[] = {Tensor::from<float>(values, {static_cast<int64_t>(values.size())})};
  return bit_hash(tensors).to_vector<int64_t>();
}

TEST(BitHash, DependsOnEveryBitAndEveryPlace) {
  std::vector<float> values(300'001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) - 48;
  const std::vector<int64_t> whole = hash(values);
  EXPECT_EQ(hash(values), whole);
  for (size_t place : {0U, 1U, 65'536U, 299'999U, 300'000U})
    for (int bit : {0, 1, 15, 22, 31}) {
      std::vector<float> other = values;
      uint32_t word;
      std::memcpy(&word, &other[place], 4);
      word ^= 1U << bit;
      std::memcpy(&other[place], &word, 4);
      EXPECT_NE(hash(other), whole) << place << " " << bit;
    }
  std::swap(values[3], values[4]);
  EXPECT_NE(hash(values), whole);
  EXPECT_NE(hash({0.0F}), hash({-0.0F}));
}

TEST(BitHash, TakesTensorsOfAnyTypeAndSize) {
  const Tensor tensors[] = {Tensor::from<uint8_t>(std::vector<uint8_t>{1, 2, 3}, {3}),
                            Tensor::from<uint8_t>(std::vector<uint8_t>{1, 2, 3, 0}, {4}),
                            Tensor::from<int64_t>(std::vector<int64_t>{5}, {}), Tensor::from<float>({}, {0})};
  const std::vector<int64_t> hashes = bit_hash(tensors).to_vector<int64_t>();
  ASSERT_EQ(hashes.size(), 4U);
  EXPECT_EQ(hashes[0], hashes[1]);  // filled up with zeros: shapes are compared elsewhere
  EXPECT_EQ(hashes[3], 0);
  EXPECT_ERROR(bit_hash({}), ShapeError, "[bit_hash] there are no tensors");
}

}  // namespace
}  // namespace bonfire::op_test::bit_hash_test
