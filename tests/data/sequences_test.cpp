#include "bonfire/data/sequences.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"

namespace bonfire::data::sequences_test {
namespace {

std::vector<int64_t> tokens_of(const Sample& sample) {
  std::vector<int64_t> tokens(sample.input.bytes.size() / sizeof(int64_t));
  std::memcpy(tokens.data(), sample.input.bytes.data(), sample.input.bytes.size());
  return tokens;
}

TEST(Sequences, TheClassIsTheLetterAfterTheMark) {
  const Sequences sequences({.size = 500, .length = 9}), again({.size = 500, .length = 9}),
      test({.split = Split::test, .size = 500, .length = 9}), other({.size = 500, .length = 9, .seed = 2});
  const auto mark = static_cast<int64_t>(Sequences::symbols().size()) - 1;
  std::array<int64_t, 5> counts{};
  int64_t equal = 0;
  for (int64_t i = 0; i < sequences.size(); ++i) {
    const Sample sample = sequences.get(i);
    const std::vector<int64_t> tokens = tokens_of(sample);
    ASSERT_EQ(tokens.size(), 9U);
    ASSERT_EQ(std::count(tokens.begin(), tokens.end(), mark), 1);
    const auto at = std::find(tokens.begin(), tokens.end(), mark);
    ASSERT_NE(at + 1, tokens.end());
    EXPECT_EQ(at[1], label_of(sample));
    EXPECT_EQ(sequences.label(i), label_of(sample));
    ++counts.at(static_cast<size_t>(at[1]));
    EXPECT_EQ(tokens, tokens_of(again.get(i)));
    equal += tokens == tokens_of(test.get(i)) || tokens == tokens_of(other.get(i)) ? 1 : 0;
  }
  for (int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 100, 40);
  EXPECT_EQ(equal, 0);
  EXPECT_EQ(sequences.class_names(), (std::vector<std::string>{"a", "b", "c", "d", "e"}));
}

TEST(Sequences, TooShortOnesAreRefused) {
  EXPECT_ERROR(Sequences({.length = 1}), ConfigError, "length 1, expected");
  EXPECT_ERROR(Sequences({.size = -1}), ConfigError, "size is -1");
}

TEST(Sequences, ASampleThatIsNotThereIsAnError) {
  const Sequences sequences({.size = 7});
  EXPECT_ERROR(sequences.get(7), DataError, "there is no sample 7: the data set has 7");
  EXPECT_ERROR(sequences.label(-1), DataError, "there is no sample -1");
}

}  // namespace
}  // namespace bonfire::data::sequences_test
