#include "bonfire/data/wordpiece.h"

#include <gtest/gtest.h>

#include <sstream>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::wordpiece_test {
namespace {

using bonfire::testing::ScratchFolder;

constexpr const char* kPieces =
    R"-([PAD] [unused0] [UNK] [CLS] [SEP] [MASK] ! " ' ( ) , - . / : ? $ + ~ ¡ — 、 。 ！ 中 国 人 the un ##aff )-"
    R"-(##able play ##ing ##ed chess cafe na ##ive resume straße stras ##se istanbul ##s a b c i o u ##a ##b )-"
    R"-(##c ##1 1 2 ##2 don t it s ᄒ ##ᅡ ##ᆫ ##ᄀ ##ᅳ ##ᆯ ελλας ##ς ελλα ##σ σ é É Café ##é The x ² ½ ﬁ ##x )-"
    R"-(##¹ мир й и α ω ##ω hello world ##world )-";

std::vector<std::string> pieces() {
  std::istringstream words(kPieces);
  return {std::istream_iterator<std::string>(words), {}};
}

std::string tokenised(const WordPiece& pieces, const std::string& text) {
  std::string result;
  for (int32_t token : pieces.tokens(text)) result += (result.empty() ? "" : " ") + pieces.piece(token);
  return result;
}

// What BertTokenizer of transformers 5.22.2 (tokenizers 0.23.3) gives with kPieces, a piece a line, as vocab.txt:
//   t = BertTokenizer(vocab="vocab.txt", do_lower_case=lower)
//   " ".join(t.convert_ids_to_tokens(t.encode(text, add_special_tokens=False)))
struct Case {
  std::string text;
  const char *lower, *cased;
};
const Case kCases[] = {
    {std::string(""), "", ""},
    {std::string("The unaffable PLAYING, chess!"), "the un ##aff ##able play ##ing , chess !",
     "The un ##aff ##able [UNK] , chess !"},
    {std::string("Café naïve RÉSUMÉ"), "cafe na ##ive resume", "Café [UNK] [UNK]"},
    {std::string("don't it's"), "don ' t it ' s", "don ' t it ' s"},
    {std::string("中国人 play 人"), "中 国 人 play 人", "中 国 人 play 人"},
    {std::string("a\302\240b\343\200\200c\011b\015\012a"), "a b c b a", "a b c b a"},
    {std::string("unknownword unaffablez"), "[UNK] [UNK]", "[UNK] [UNK]"},
    {std::string("STRASSE straße"), "stras ##se straße", "[UNK] straße"},
    {std::string("İstanbul"), "istanbul", "[UNK]"},
    {std::string("한글 한"), "ᄒ ##ᅡ ##ᆫ ##ᄀ ##ᅳ ##ᆯ ᄒ ##ᅡ ##ᆫ", "[UNK] [UNK]"},
    {std::string("ΕΛΛΑΣ ελλάς Ωω Σ"), "ελλα ##σ ελλας ω ##ω σ", "[UNK] [UNK] [UNK] [UNK]"},
    {std::string("a\342\200\213b a\302\255b a\000b a\357\277\275b", 20), "a ##b a ##b a ##b a ##b",
     "a ##b a ##b a ##b a ##b"},
    {std::string("hello—world helloworld (hello/world)"), "hello — world hello ##world ( hello / world )",
     "hello — world hello ##world ( hello / world )"},
    {std::string("x² ½ ﬁ x¹"), "[UNK] ½ ﬁ x ##¹", "[UNK] ½ ﬁ x ##¹"},
    {std::string("мир Й й"), "мир и и", "мир [UNK] й"},
    {std::string("¡hello! 、中。！"), "¡ hello ! 、 中 。 ！", "¡ hello ! 、 中 。 ！"},
    {std::string("$1+2~"), "$ 1 + 2 ~", "$ 1 + 2 ~"},
    {std::string("e\314\201 a\314\200\314\201b"), "[UNK] a ##b", "[UNK] [UNK]"},
    {std::string("\342\200\250a\342\200\251b\302\205c"), "a b ##c", "a b ##c"},
    {std::string("𠀀a丽"), "[UNK] a [UNK]", "[UNK] a [UNK]"},
    {std::string("..a.."), ". . a . .", ". . a . ."},
    {std::string("##a ##"), "[UNK] [UNK] a [UNK] [UNK]", "[UNK] [UNK] a [UNK] [UNK]"},
    {std::string("aःb"), "[UNK]", "[UNK]"},
    {std::string("ǅ ǆ"), "[UNK] [UNK]", "[UNK] [UNK]"},
    {std::string("a\342\200\211b"), "a b", "a b"},
    {std::string("a\341\240\216b"), "a ##b", "a ##b"},
    {std::string("😀 a"), "[UNK] a", "[UNK] a"},
};

TEST(WordPiece, GivesWhatBertTokenizerGives) {
  WordPiece lower(pieces(), "test"), cased(pieces(), "test", {.lower_case = false});
  for (const Case& c : kCases) {
    EXPECT_EQ(tokenised(lower, c.text), c.lower) << c.text;
    EXPECT_EQ(tokenised(cased, c.text), c.cased) << c.text;
  }
}

TEST(WordPiece, WordsOfMoreThanAHundredCharactersAreUnknown) {
  WordPiece wordpiece(pieces(), "test");
  EXPECT_EQ(wordpiece.tokens(std::string(100, 'a')).size(), 100U);
  EXPECT_EQ(tokenised(wordpiece, std::string(101, 'a')), "[UNK]");
}

TEST(WordPiece, ASpecialTokenInATextIsText) {
  WordPiece wordpiece(pieces(), "test");
  EXPECT_EQ(tokenised(wordpiece, "a [MASK]"), "a [UNK] [UNK] [UNK]");  // bracket, word, bracket
}

TEST(WordPiece, ReadsAVocabularyWithEitherLineEnd) {
  ScratchFolder folder;
  folder.put("vocab.txt", "[UNK]\r\n[CLS]\r\n[SEP]\n[MASK]\nhello");
  WordPiece wordpiece = WordPiece::load(folder / "vocab.txt");
  EXPECT_EQ(wordpiece.size(), 5);
  EXPECT_EQ(wordpiece.mask(), 3);
  EXPECT_EQ(wordpiece.tokens("Hello there"), (std::vector<int32_t>{4, 0}));
}

TEST(WordPiece, ABadVocabularyIsNamedWithItsLine) {
  ScratchFolder folder;
  auto load = [&](const char* content) { return WordPiece::load(folder.put("vocab.txt", content)); };
  EXPECT_ERROR(WordPiece::load(folder / "absent.txt"), DataError, "absent.txt");
  EXPECT_ERROR(load(""), DataError, "[UNK] is not among its 0 pieces; expected BERT's vocab.txt, a piece a line");
  EXPECT_ERROR(load("[UNK]\n[CLS]\n[SEP]\n"), DataError, "vocab.txt: [MASK] is not among its 3 pieces");
  EXPECT_ERROR(load("[UNK]\na\nb\na\n"), DataError, "line 4 has the piece 'a' of line 2 again; remove one");
  EXPECT_ERROR(load("[UNK]\n\nb\n"), DataError, "line 2 is empty, expected a piece");
  EXPECT_ERROR(load("[UNK]\n\xff\xfe\n"), DataError, "line 2 is not UTF-8 at its byte 1");
}

}  // namespace
}  // namespace bonfire::data::wordpiece_test
