#include "bonfire/base/random.h"

#include <gtest/gtest.h>

TEST(Philox, MatchesTheKnownAnswers) {
  bonfire::RandomBlock block = bonfire::philox(0, 0, 0);
  EXPECT_EQ(block.word[0], 0x6627e8d5U);
}
