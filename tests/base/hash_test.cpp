#include "bonfire/base/hash.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>
#include <unordered_set>

namespace bonfire::base::hash_test {
namespace {

Hash128 hash_of(std::initializer_list<uint64_t> words) {
  Hash128 hash;
  for (uint64_t word : words) hash.mix(word);
  return hash;
}

Hash128 hash_of_texts(std::initializer_list<std::string_view> texts) {
  Hash128 hash;
  for (std::string_view text : texts) hash.mix(text);
  return hash;
}

TEST(Hash, DependsOnOrderAndLength) {
  EXPECT_EQ(hash_of({1, 2, 3}), hash_of({1, 2, 3}));
  EXPECT_NE(hash_of({1, 2, 3}), hash_of({1, 3, 2}));
  EXPECT_NE(hash_of({1, 2}), hash_of({1, 2, 0}));
  EXPECT_NE(hash_of({0}), hash_of({0, 0}));
}

TEST(Hash, KeepsTheBoundsOfTexts) {
  EXPECT_NE(hash_of_texts({"ab", "c"}), hash_of_texts({"a", "bc"}));
  EXPECT_NE(hash_of_texts({""}), hash_of_texts({"", ""}));
}

TEST(Hash, NeitherHalfCollidesOnSmallIntegers) {
  constexpr uint64_t kSide = 256;
  std::unordered_set<uint64_t> low, high;
  for (uint64_t a = 0; a < kSide; ++a)
    for (uint64_t b = 0; b < kSide; ++b) {
      Hash128 hash = hash_of({a, b});
      low.insert(hash.low);
      high.insert(hash.high);
    }
  EXPECT_EQ(low.size(), kSide * kSide);
  EXPECT_EQ(high.size(), kSide * kSide);
}

TEST(Hash, IsAKeyOfUnorderedContainers) {
  std::unordered_set<Hash128> keys{hash_of({1}), hash_of({2}), hash_of({1})};
  EXPECT_EQ(keys.size(), 2U);
}

}  // namespace
}  // namespace bonfire::base::hash_test
