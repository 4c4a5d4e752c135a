#pragma once
// GPT-2's tokens: text is split into words as GPT-2 does it, each word is bytes, and pairs of neighbours are merged in
// the order in which merges.txt has them. Every text has tokens, and they give back exactly its bytes.
//
//   data::BytePairs pairs = data::BytePairs::load("data/book");          // its vocab.json and merges.txt
//   std::vector<int32_t> tokens = pairs.tokens("It wasn't there.");      // It / Ġwasn / 't / Ġthere / .
//   std::string text = pairs.text(tokens);
//
// Gives what Hugging Face's GPT2Tokenizer gives (but that characters are what Unicode 14 says): <|endoftext|> in a text
// is one token, where the vocabulary has it. Without a vocabulary each byte is a token.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bonfire::data {

class BytePairs {
 public:
  BytePairs();  // bytes: token 65 is the byte 65, and there are 256

  // vocab.json and merges.txt of the folder. DataError with the file, and the line of a merge, where one is missing,
  // is not what it should be, or does not go with the other.
  static BytePairs load(const std::filesystem::path& folder);
  // Of the folder, if it has one; else bytes. DataError where there is only one of the two files.
  static BytePairs in(const std::filesystem::path& folder);

  std::vector<int32_t> tokens(std::string_view text) const;  // bytes that are no UTF-8 are tokens as well
  std::string text(std::span<const int32_t> tokens) const;
  const std::string& bytes_of(int64_t token) const { return pieces_.at(static_cast<size_t>(token)); }

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  bool is_bytes() const { return merges_.empty(); }                    // whether tokens are bytes
  std::optional<int32_t> end_of_text() const { return end_of_text_; }  // <|endoftext|>

 private:
  struct Merge {
    int32_t rank, merged;
  };
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): what the library asks for
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  template <class Value>
  using ByText = std::unordered_map<std::string, Value, Hash, std::equal_to<>>;
  using Known = ByText<std::vector<int32_t>>;  // words that were met, with their tokens

  void take_vocabulary(std::span<const std::byte> json, const std::string& name);
  void take_merges(std::span<const std::byte> lines, const std::string& name);
  void add_merge(std::string_view line, const std::string& where);
  void append_text(std::string_view text, Known& known, std::vector<int32_t>& tokens) const;
  std::vector<int32_t> merged(std::string_view word) const;

  std::vector<std::string> pieces_;             // [token]: its bytes
  std::array<int32_t, 256> of_byte_{};          // the token of a byte alone
  ByText<int32_t> numbers_;                     // by the piece as vocab.json writes it; while the files are read
  std::unordered_map<uint64_t, Merge> merges_;  // by both tokens
  std::optional<int32_t> end_of_text_;
};

// Where the word that begins at `at` ends: GPT-2's regular expression
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t end_of_word(std::string_view text, size_t at);

}  // namespace bonfire::data
