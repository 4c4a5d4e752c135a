#include "bonfire/comm/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/expect_error.h"

namespace bonfire::comm::reduce_test {
namespace {

template <class T>
T reduced(std::vector<T> values, Reduction reduction) {
  std::vector<const void*> sources;
  for (const T& value : values) sources.push_back(&value);
  T result{};
  void* to = &result;
  reduce_values(sources, {&to, 1}, 1, dtype_of<T>(), reduction);
  return result;
}

TEST(ReduceValues, HalfPrecisionIsSummedInF32AndRoundedOnce) {
  // Step by step 256 + 1 would stay 256 in bf16, for ever.
  EXPECT_EQ(float(reduced<bfloat16>({256.0F, 1.0F, 1.0F, 1.0F, 1.0F}, {Reduce::sum, 5})), 260.0F);
  EXPECT_EQ(float(reduced<float16>({2048.0F, 1.0F, 1.0F, 1.0F, 1.0F}, {Reduce::sum, 5})), 2052.0F);
  // The sum of two is no f16, their mean is.
  EXPECT_EQ(float(reduced<float16>({60000.0F, 60000.0F}, {Reduce::mean, 2})), 60000.0F);
}

TEST(ReduceValues, EveryHalfIsReadAndWrittenAsItsTypeDoes) {
  std::vector<float16> all(1 << 16), halves(all.size()), sums(all.size());
  for (size_t bits = 0; bits < all.size(); ++bits) all[bits].bits = static_cast<uint16_t>(bits);
  for (size_t bits = 0; bits < all.size(); ++bits) halves[bits].bits = static_cast<uint16_t>(bits * 40503);
  std::array<const void*, 2> sources = {all.data(), halves.data()};
  void* to = sums.data();
  reduce_values(sources, {&to, 1}, all.size(), DType::f16, {Reduce::mean, 2});
  for (size_t i = 0; i < all.size(); ++i) {
    float16 expected((float(all[i]) + float(halves[i])) / 2.0F);
    bool number = float(expected) == float(expected);
    ASSERT_EQ(number ? sums[i].bits : 0, number ? expected.bits : 0) << all[i].bits;
    ASSERT_EQ(float(sums[i]) != float(sums[i]), float(expected) != float(expected)) << all[i].bits;
  }
}

TEST(ReduceValues, CombinesInTheOrderOfTheSources) {
  EXPECT_EQ(reduced<float>({1e8F, -1e8F, 1.0F}, {Reduce::sum, 3}), 1.0F);
  EXPECT_EQ(reduced<float>({1e8F, 1.0F, -1e8F}, {Reduce::sum, 3}), 0.0F);
}

TEST(ReduceValues, IntegersWrapAroundAndBooleansAreAny) {
  EXPECT_EQ(reduced<uint8_t>({200, 100}, {Reduce::sum, 2}), 44);
  EXPECT_EQ(reduced<int32_t>({std::numeric_limits<int32_t>::max(), 1}, {Reduce::sum, 2}),
            std::numeric_limits<int32_t>::min());
  bool yes = true, no = false, result = false;
  std::array<const void*, 2> sources = {&no, &yes};
  void* to = &result;
  reduce_values(sources, {&to, 1}, 1, DType::boolean, {Reduce::sum, 2});
  EXPECT_TRUE(result);
}

TEST(ReduceValues, TheMaximumIsSignedAndKeepsNaN) {
  EXPECT_EQ(reduced<int64_t>({-5, -3, -9}, {Reduce::max, 3}), -3);
  float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& values : {std::vector{nan, 1.0F, 2.0F}, {1.0F, nan, 2.0F}, {1.0F, 2.0F, nan}})
    EXPECT_TRUE(std::isnan(reduced<float>(values, {Reduce::max, 3})));
}

TEST(ReduceValues, EveryResultHoldsTheReductionAlsoWhereItIsASource) {
  constexpr size_t kCount = 2500;  // more than one block
  std::vector<std::vector<float>> values(3, std::vector<float>(kCount));
  for (size_t rank = 0; rank < 3; ++rank)
    for (size_t i = 0; i < kCount; ++i) values[rank][i] = static_cast<float>(rank * 1000 + i);
  std::vector<void*> all = {values[0].data(), values[1].data(), values[2].data()};
  reduce_values({all.data(), all.size()}, all, kCount, DType::f32, {Reduce::mean, 3});
  for (const std::vector<float>& mean : values)
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(mean[i], static_cast<float>(1000 + i));
}

TEST(ReduceValues, IntegersHaveNoMean) {
  EXPECT_ERROR(check_reduction("all_reduce", DType::i64, Reduce::mean), ConfigError,
               "[all_reduce] i64 numbers have no mean that is i64 again; sum them, or cast them to f32");
  check_reduction("all_reduce", DType::bf16, Reduce::mean);
}

}  // namespace
}  // namespace bonfire::comm::reduce_test
