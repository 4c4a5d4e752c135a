#include "bonfire/data/token_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "bonfire/base/error.h"
#include "bonfire/data/text.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::token_blocks_test {
namespace {

using bonfire::testing::ScratchFolder;

std::vector<int64_t> values_of(const Array& array) {
  std::vector<int64_t> values(array.bytes.size() / sizeof(int64_t));
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

TokenBlocks::Row numbers(int32_t count) {
  std::vector<int32_t> row(static_cast<size_t>(count));
  std::iota(row.begin(), row.end(), 100);
  return std::make_shared<const std::vector<int32_t>>(row);
}

TEST(TokenBlocks, PredictEveryTokenButTheFirstExactlyOnce) {
  for (int32_t count = 2; count < 40; ++count)
    for (int64_t length : {1, 3, 4, 8}) {
      const TokenBlocks blocks(numbers(count), length, "test");
      std::vector<int64_t> predicted;
      for (int64_t i = 0; i < blocks.size(); ++i) {
        const Sample sample = blocks.get(i);
        const std::vector<int64_t> input = values_of(sample.input), label = values_of(sample.label);
        ASSERT_EQ(input.size(), static_cast<size_t>(length));
        ASSERT_EQ(label.size(), input.size());
        for (size_t t = 0; t < label.size(); ++t) {
          if (label[t] == kNotATarget) continue;
          EXPECT_EQ(label[t], input[t] + 1);
          predicted.push_back(label[t]);
        }
      }
      std::vector<int64_t> expected(static_cast<size_t>(count) - 1);
      std::iota(expected.begin(), expected.end(), 101);
      EXPECT_EQ(predicted, expected) << count << " tokens in blocks of " << length;
    }
}

TEST(TokenBlocks, StayWithinTheirRange) {
  const TokenBlocks first(numbers(20), 4, "test", {.begin = 0, .end = 10}), rest(numbers(20), 4, "test", {.begin = 10});
  EXPECT_EQ(first.size(), 3);  // 9 tokens to predict
  EXPECT_EQ(values_of(first.get(2).label), (std::vector<int64_t>{109, kNotATarget, kNotATarget, kNotATarget}));
  EXPECT_EQ(values_of(rest.get(0).input)[0], 110);
  EXPECT_ERROR(TokenBlocks(numbers(20), 4, "a book", {.begin = 19}), DataError,
               "a book has 1 tokens, expected at least 2");
  EXPECT_ERROR(first.get(3), DataError, "there is no sample 3: the data set has 3");
  EXPECT_ERROR(first.get(-1), DataError, "there is no sample -1");
}

TEST(TokenBlocks, AFileIsReadAsBytesOrMustBeUtf8) {
  ScratchFolder folder;
  folder.put("text.txt", "one\ntwo\n\xff\n");
  EXPECT_EQ(load_tokens(folder / "text.txt", BytePairs())->size(), 10U);
  const BytePairs pairs = BytePairs::load(BONFIRE_SOURCE_DIR "/tests/golden/byte_pairs");
  EXPECT_ERROR(load_tokens(folder / "text.txt", pairs), DataError, "text.txt: line 3 is not UTF-8");
  EXPECT_ERROR(load_tokens(folder / "none.txt", pairs), DataError, "none.txt");
}

}  // namespace
}  // namespace bonfire::data::token_blocks_test
