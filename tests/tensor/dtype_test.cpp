#include "bonfire/tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "bonfire/base/error.h"

namespace bonfire::dtype_test {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                          DType::i32, DType::i64, DType::u8,   DType::boolean};

TEST(DType, NamesAreReadBack) {
  for (DType dtype : kAll) EXPECT_EQ(parse_dtype(name_of(dtype)), dtype) << name_of(dtype);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("float"), DType::f32);
}

TEST(DType, AnUnknownNameIsAnErrorThatListsTheNames) {
  try {
    parse_dtype("float23");
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string_view(error.what()).find("'float23'"), std::string_view::npos) << error.what();
    EXPECT_NE(std::string_view(error.what()).find("bf16"), std::string_view::npos) << error.what();
  }
}

TEST(DType, DispatchCallsWithTheTypeOfThatNameAndSize) {
  for (DType dtype : kAll)
    dispatch(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      EXPECT_EQ(dtype_of<T>(), dtype) << name_of(dtype);
      EXPECT_EQ(sizeof(T), size_of(dtype)) << name_of(dtype);
    });
}

// torch.promote_types on the same pairs.
TEST(DType, PromotesAsPyTorchDoes) {
  EXPECT_EQ(promote(DType::f32, DType::f64), DType::f64);
  EXPECT_EQ(promote(DType::bf16, DType::f32), DType::f32);
  EXPECT_EQ(promote(DType::bf16, DType::f16), DType::f32);
  EXPECT_EQ(promote(DType::bf16, DType::i64), DType::bf16);
  EXPECT_EQ(promote(DType::i64, DType::f16), DType::f16);
  EXPECT_EQ(promote(DType::i32, DType::i64), DType::i64);
  EXPECT_EQ(promote(DType::u8, DType::i32), DType::i32);
  EXPECT_EQ(promote(DType::boolean, DType::u8), DType::u8);
  EXPECT_EQ(promote(DType::boolean, DType::bf16), DType::bf16);
}

TEST(DType, PromotionIsSymmetricAndKeepsEqualTypes) {
  for (DType a : kAll) {
    EXPECT_EQ(promote(a, a), a);
    for (DType b : kAll) EXPECT_EQ(promote(a, b), promote(b, a)) << name_of(a) << " " << name_of(b);
  }
}

// Half must be a 16-bit float ordered by its bits. Checks every value, and rounding at every midpoint of neighbours.
template <class Half>
void check_conversions(uint16_t infinity) {
  auto half = [](uint16_t bits) {
    Half value;
    value.bits = bits;
    return value;
  };
  for (uint16_t bits = 0; bits < infinity; ++bits) {
    float value = half(bits);
    ASSERT_EQ(Half(value).bits, bits);
    ASSERT_EQ(Half(-value).bits, bits | 0x8000U);
    ASSERT_EQ(static_cast<float>(half(bits | 0x8000U)), -value);
    if (bits + 1 == infinity) break;
    float above = half(bits + 1);
    ASSERT_LT(value, above);
    float middle = value + (above - value) / 2;
    ASSERT_EQ(Half(middle).bits, bits % 2 == 0 ? bits : bits + 1) << middle;
    ASSERT_EQ(Half(std::nextafter(middle, value)).bits, bits) << middle;
    ASSERT_EQ(Half(std::nextafter(middle, above)).bits, bits + 1) << middle;
  }
  float largest = std::numeric_limits<float>::max(), endless = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Half(largest).bits, infinity);
  EXPECT_EQ(Half(endless).bits, infinity);
  EXPECT_EQ(Half(-endless).bits, infinity | 0x8000U);
  EXPECT_EQ(static_cast<float>(half(infinity)), endless);
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::numeric_limits<float>::quiet_NaN()))));
  // A NaN whose set bits are all cut off must not become infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::bit_cast<float>(0x7F800001U)))));
}

TEST(BFloat16, RoundsToNearestEvenEverywhere) { check_conversions<bfloat16>(0x7F80); }

TEST(Float16, RoundsToNearestEvenEverywhere) { check_conversions<float16>(0x7C00); }

TEST(Float16, HasTheValuesOfTheStandard) {
  EXPECT_EQ(float16(1.0F).bits, 0x3C00);
  EXPECT_EQ(float16(65504.0F).bits, 0x7BFF);
  EXPECT_EQ(float16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(float16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(float16(0x1.0p-14F).bits, 0x0400);
  EXPECT_EQ(float16(0x1.0p-24F).bits, 0x0001);
  EXPECT_EQ(float16(0x1.0p-25F).bits, 0x0000);
}

}  // namespace
}  // namespace bonfire::dtype_test
