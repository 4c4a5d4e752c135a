#include "bonfire/data/text.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/data/loader.h"
#include "bonfire/data/sentences.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::text_test {
namespace {

using bonfire::testing::ScratchFolder;

const WordPiece& for_messages() {
  static const WordPiece kPieces({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e"}, "letters");
  return kPieces;
}

std::vector<int64_t> values(const Array& array) {
  EXPECT_EQ(array.dtype, DType::i64);
  std::vector<int64_t> result(array.bytes.size() / 8);
  std::memcpy(result.data(), array.bytes.data(), array.bytes.size());
  return result;
}

std::string words(const Array& array, const WordPiece& pieces) {
  std::string result;
  for (int64_t token : values(array)) result += pieces.piece(token) + " ";
  return result;
}

TEST(Text, PacksLinesIntoFullSequences) {
  ScratchFolder folder;
  auto text = load_text(folder.put("train.txt", "a b\n\nc d e\r\nx"), for_messages(), 6);
  ASSERT_EQ(text->size(), 3);  // a b [SEP] c | d e [SEP] [UNK] | and the last reaches back
  EXPECT_EQ(words(text->get(0).input, for_messages()), "[CLS] a b [SEP] c [SEP] ");
  EXPECT_EQ(words(text->get(1).input, for_messages()), "[CLS] d e [SEP] [UNK] [SEP] ");
  EXPECT_EQ(words(text->get(2).input, for_messages()), "[CLS] e [SEP] [UNK] [SEP] [SEP] ");
  EXPECT_EQ(values(text->get(0).label), std::vector<int64_t>(6, kNotATarget));
}

TEST(Text, ASampleThatIsNotThereIsAnError) {
  const auto text = text_of_lines(std::vector<std::string>{"a b c d"}, for_messages(), 4, "test");
  ASSERT_EQ(text->size(), 3);
  EXPECT_ERROR(text->get(3), DataError, "there is no sample 3: the data set has 3, counted from 0");
  EXPECT_ERROR(text->get(-1), DataError, "there is no sample -1");
}

TEST(Text, SequencesWithoutRoomForATokenAreRefused) {
  ScratchFolder folder;
  const std::filesystem::path file = folder.put("train.txt", "a b c\n");
  for (int64_t length : {2, 0, -1})
    EXPECT_ERROR(load_text(file, for_messages(), length), ConfigError,
                 "a sequence of " + std::to_string(length) + " tokens has no room between [CLS] and [SEP]");
  EXPECT_EQ(load_text(file, for_messages(), 3)->size(), 4);
}

TEST(Text, BadFilesAreNamed) {
  ScratchFolder folder;
  EXPECT_ERROR(load_text(folder / "absent.txt", for_messages(), 8), DataError, "absent.txt");
  EXPECT_ERROR(load_text(folder.put("short.txt", "a b\n"), for_messages(), 8), DataError,
               "short.txt has 3 tokens, expected at least 6 for one sequence; use a smaller seq_length");
  EXPECT_ERROR(load_text(folder.put("latin.txt", "a b\ncaf\xe9\n"), for_messages(), 8), DataError,
               "latin.txt: line 2 is not UTF-8 at its byte 4; convert the file");
}

// A text of 400 sequences of 40 letters.
std::shared_ptr<Text> long_text() {
  std::vector<std::string> lines;
  for (int i = 0; i < 400; ++i) {
    std::string line;
    for (int k = 0; k < 39; ++k) line += std::string(1, static_cast<char>('a' + (i + k * k) % 5)) + " ";
    lines.push_back(line);
  }
  return text_of_lines(lines, for_messages(), 42, "test");
}

TEST(MaskTokens, ChoosesFifteenPercentOfTheWordsInThreeWays) {
  auto text = long_text();
  Transform mask = mask_tokens(for_messages(), {.every_epoch = true});
  int64_t masked = 0, random = 0, kept = 0;
  std::set<int64_t> drawn;
  for (int64_t i = 0; i < text->size(); ++i) {
    Sample plain = text->get(i), sample = plain;
    mask(sample, {7, 0, i});
    std::vector<int64_t> before = values(plain.input), after = values(sample.input), target = values(sample.label);
    int64_t targets = 0;
    for (size_t k = 0; k < before.size(); ++k) {
      if (target[k] == kNotATarget) {
        EXPECT_EQ(after[k], before[k]);
        continue;
      }
      ++targets;
      EXPECT_EQ(target[k], before[k]);
      EXPECT_GE(before[k], 5) << "[CLS] or [SEP] was chosen";
      if (after[k] == for_messages().mask())
        ++masked;
      else if (after[k] == before[k])
        ++kept;
      else
        ++random, drawn.insert(after[k]);
    }
    EXPECT_EQ(targets, 6);  // 39 words
  }
  // 2400 of them: five deviations of a binomial distribution either way.
  EXPECT_NEAR(static_cast<double>(masked), 0.82 * 2400, 95);  // a random token may be [MASK], or the word itself
  EXPECT_NEAR(static_cast<double>(random), 0.08 * 2400, 70);
  EXPECT_NEAR(static_cast<double>(kept), 0.11 * 2400, 75);
  EXPECT_EQ(drawn.size(), 9U);  // every piece but [MASK], which counts as masked
}

TEST(MaskTokens, IsAFunctionOfSeedEpochAndIndex) {
  auto text = long_text();
  auto masked = [&](bool every_epoch, uint64_t seed, int64_t epoch, int64_t index) {
    Sample sample = text->get(index);
    mask_tokens(for_messages(), {.every_epoch = every_epoch})(sample, {seed, epoch, index});
    return std::pair(values(sample.input), values(sample.label));
  };
  EXPECT_EQ(masked(true, 1, 3, 5), masked(true, 1, 3, 5));
  EXPECT_NE(masked(true, 1, 3, 5), masked(true, 1, 4, 5));
  EXPECT_NE(masked(true, 1, 3, 5), masked(true, 2, 3, 5));
  EXPECT_EQ(masked(false, 1, 3, 5), masked(false, 1, 4, 5));  // an evaluation asks the same each time
  EXPECT_EQ(masked(false, 1, 3, 5), masked(true, 1, 0, 5));
}

TEST(MaskTokens, OneWordAtLeastIsATarget) {
  auto text = text_of_lines(std::vector<std::string>{"a"}, for_messages(), 4, "test");
  Sample sample = text->get(0);
  mask_tokens(for_messages())(sample, {1, 0, 0});
  EXPECT_EQ(values(sample.label), (std::vector<int64_t>{kNotATarget, 5, kNotATarget, kNotATarget}));
}

TEST(MaskTokens, AShareThatMakesNoSenseIsAnError) {
  EXPECT_ERROR(mask_tokens(for_messages(), {.share = 0}), ConfigError, "share is 0, expected above 0, at most 1");
  EXPECT_ERROR(mask_tokens(for_messages(), {.share = 1.5}), ConfigError, "share is 1.5");
}

TEST(MaskTokens, ComesThroughTheLoader) {
  DataLoader loader(long_text(),
                    {.batch_size = 8, .shuffle = true, .num_workers = 2, .transform = mask_tokens(for_messages())});
  Batch batch = loader.next();
  EXPECT_EQ(batch.input.shape(), (Shape{8, 42}));
  EXPECT_EQ(batch.label.shape(), (Shape{8, 42}));
  EXPECT_EQ(batch.label.dtype(), DType::i64);
}

TEST(Sentences, AreCoveredByTheirVocabularyAndDifferInTheSplits) {
  WordPiece pieces(sentence_vocabulary(), "built in");
  std::vector<std::string> train = sentences(Split::train, 2000), test = sentences(Split::test, 2000);
  EXPECT_EQ(train, sentences(Split::train, 2000));
  EXPECT_NE(train, test);
  std::set<int32_t> used;
  for (const std::string& line : train)
    for (int32_t token : pieces.tokens(line)) {
      EXPECT_NE(token, pieces.unknown()) << line;
      used.insert(token);
    }
  EXPECT_EQ(static_cast<int64_t>(used.size()), pieces.size() - 5);  // all but the special ones
}

}  // namespace
}  // namespace bonfire::data::text_test
