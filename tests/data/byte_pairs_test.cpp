// GPT-2's tokens, against what Hugging Face makes of the same texts (tests/golden/generate_byte_pairs.py).
#include "bonfire/data/byte_pairs.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "bonfire/base/error.h"
#include "bonfire/data/unicode.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::byte_pairs_test {
namespace {

using bonfire::testing::ScratchFolder;

const std::string kFolder = BONFIRE_SOURCE_DIR "/tests/golden/byte_pairs";

const nlohmann::json& golden() {
  static const auto json = nlohmann::json::parse(std::ifstream(kFolder + "/texts.json"));
  return json;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_word(text, at);
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

TEST(BytePairs, GiveTheTokensOfHuggingFaceAndTheTextBack) {
  const BytePairs pairs = BytePairs::load(kFolder);
  EXPECT_EQ(pairs.size(), golden().at("vocabulary").get<int64_t>());
  EXPECT_EQ(pairs.end_of_text(), pairs.size() - 1);
  EXPECT_GT(golden().at("texts").size(), 30U);
  for (const nlohmann::json& row : golden().at("texts")) {
    const auto text = row.at("text").get<std::string>();
    const std::vector<int32_t> tokens = pairs.tokens(text);
    EXPECT_EQ(tokens, row.at("tokens").get<std::vector<int32_t>>()) << row.at("text");
    EXPECT_EQ(pairs.text(tokens), text) << row.at("text");
  }
}

TEST(BytePairs, SplitTextWhereGpt2Does) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words_of("don't  stop\n\n now"), (Words{"don", "'t", " ", " stop", "\n\n", " now"}));
  EXPECT_EQ(words_of("a1 b22\t.x  "), (Words{"a", "1", " b", "22", "\t", ".", "x", "  "}));
  EXPECT_EQ(words_of("I'll 'twas ''s"), (Words{"I", "'ll", " '", "twas", " ''", "s"}));
  EXPECT_EQ(words_of("\u00a0x \u00a0y"), (Words{"\u00a0", "x", " ", "\u00a0", "y"}));
}

// Any bytes, whether they are UTF-8 or not, are words without a gap, and tokens that give them back.
TEST(BytePairs, LoseNothingOfRandomBytes) {
  const BytePairs pairs = BytePairs::load(kFolder), bytes;
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string likely = "  \n\t'sledrtvm019.,!\u00e9\u706b\u00a0\u2003";
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (auto length = random() % 60; length > 0; --length)
      text += random() % 4 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
    std::string joined;
    for (const std::string& word : words_of(text)) {
      EXPECT_FALSE(word.empty());
      joined += word;
    }
    EXPECT_EQ(joined, text);
    EXPECT_EQ(pairs.text(pairs.tokens(text)), text);
    EXPECT_EQ(bytes.text(bytes.tokens(text)), text);
    EXPECT_EQ(bytes.tokens(text).size(), text.size());
  }
}

TEST(BytePairs, AreBytesWithoutAVocabulary) {
  ScratchFolder folder;
  const BytePairs pairs = BytePairs::in(folder.path());
  EXPECT_TRUE(pairs.is_bytes());
  EXPECT_EQ(pairs.size(), 256);
  EXPECT_EQ(pairs.tokens("A\xff"), (std::vector<int32_t>{65, 255}));
  EXPECT_FALSE(pairs.end_of_text());
}

TEST(BytePairs, AWordOfAMillionBytesIsMergedInAMoment) {
  const BytePairs pairs = BytePairs::load(kFolder);
  const std::string word(1'000'000, 'e');
  EXPECT_EQ(pairs.text(pairs.tokens(word)), word);  // merging by repeated search would take hours
}

std::string all_bytes() {  // a vocabulary's first 256 entries, without its end
  std::ifstream stream(kFolder + "/vocab.json");
  auto json = nlohmann::json::parse(stream);
  std::vector<std::string> pieces(256);
  for (const auto& [piece, number] : json.items())
    if (number.get<size_t>() < 256) pieces[number.get<size_t>()] = piece;
  std::string text = "{";
  for (size_t i = 0; i < pieces.size(); ++i) text += nlohmann::json(pieces[i]).dump() + ": " + std::to_string(i) + ", ";
  return text;
}

TEST(BytePairs, DamagedFilesAreNamedWithWhatIsWrong) {
  ScratchFolder folder;
  auto load = [&](const std::string& vocabulary, const std::string& merges) {
    folder.put("vocab.json", vocabulary);
    folder.put("merges.txt", merges);
    return BytePairs::in(folder.path());
  };
  const std::string bytes = all_bytes();
  EXPECT_EQ(load(bytes + R"("he": 256})", "#version: 0.2\nh e\n").tokens("he").size(), 1U);
  EXPECT_EQ(load(bytes + R"("he": 256})", "h e\r\n").tokens("the").size(), 2U);
  EXPECT_ERROR(load("[1]", "h e\n"), DataError, "vocab.json is no JSON object");
  EXPECT_ERROR(load(R"({"a": 0})", "h e\n"), DataError, "for the byte 0, expected one for every byte");
  EXPECT_ERROR(load(bytes + R"("he": 300})", "h e\n"), DataError,
               "'he' has the number 300, expected each from 0 to 256");
  EXPECT_ERROR(load(bytes + R"("he": 255})", "h e\n"), DataError, "has the number 255");
  EXPECT_ERROR(load(bytes + R"("he": "x"})", "h e\n"), DataError, "has the number \"x\"");
  EXPECT_ERROR(load(bytes + R"("h e": 256})", "h e\n"), DataError, "'h e' does not stand for bytes");
  EXPECT_ERROR(load(bytes + R"("he": 256})", "#version\nh e e\n"), DataError, "merges.txt: line 2 is 'h e e'");
  EXPECT_ERROR(load(bytes + R"("he": 256})", "h e\nh e\n"), DataError, "line 2 has the merge 'h e' again");
  EXPECT_ERROR(load(bytes + R"("he": 256})", "t h\n"), DataError, "line 1 has 'th', which is not in vocab.json");
  EXPECT_ERROR(load(bytes + R"("he": 256})", "\n"), DataError, "has no merges");
  std::filesystem::remove(folder / "merges.txt");
  EXPECT_ERROR(BytePairs::in(folder.path()), DataError, "has vocab.json but no merges.txt");
}

}  // namespace
}  // namespace bonfire::data::byte_pairs_test
