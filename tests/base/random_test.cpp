#include "bonfire/base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace bonfire::random_test {
namespace {

std::array<uint32_t, 4> words(uint64_t seed, uint64_t stream, uint64_t counter) {
  RandomBlock block = philox(seed, stream, counter);
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

using Words = std::array<uint32_t, 4>;

// The known answers that Random123 publishes for philox4x32-10; (counter, stream) is its counter, seed its key.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(words(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(~0ULL, ~0ULL, ~0ULL), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, LiesInTheHalfOpenUnitInterval) {
  EXPECT_EQ(uniform_from_bits(0), 0.0F);
  EXPECT_LT(uniform_from_bits(~0U), 1.0F);
  EXPECT_EQ(uniform_from_bits(0x80000000U), 0.5F);
}

TEST(Uniform, HasTheMomentsOfTheDistribution) {
  constexpr int kCount = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    double x = uniform_at(7, 3, static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 1.0 / 2, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.005);
}

TEST(Uniform, ElementsComeFromTheWordsOfSuccessiveBlocks) {
  for (uint64_t i = 0; i < 16; ++i)
    EXPECT_EQ(uniform_at(1, 2, i), uniform_from_bits(philox(1, 2, i / 4).word[i % 4])) << i;
}

TEST(Uniform, StreamsAndSeedsDiffer) {
  EXPECT_NE(uniform_at(1, 2, 0), uniform_at(1, 3, 0));
  EXPECT_NE(uniform_at(1, 2, 0), uniform_at(2, 2, 0));
}

TEST(Normal, HasTheMomentsOfTheDistribution) {
  constexpr int kCount = 100000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    double x = normal_at(7, 3, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
  EXPECT_NEAR(fourth / kCount, 3.0, 0.15);
}

}  // namespace
}  // namespace bonfire::random_test
