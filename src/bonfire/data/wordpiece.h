#pragma once
// BERT's tokeniser: text is split into words as BERT does it (lower case without accents by option, punctuation and
// Chinese characters alone), each word into the longest pieces that the vocabulary has.
//
//   data::WordPiece pieces = data::WordPiece::load("data/wiki/vocab.txt");
//   std::vector<int32_t> tokens = pieces.tokens("Playing chess!");   // play ##ing chess !
//
// Gives what Hugging Face's BertTokenizer gives, but for two things: special tokens written in a text ("[MASK]") are
// text, and [CLS] and [SEP] are not added.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bonfire::data {

struct WordPieceOptions {
  bool lower_case = true;  // false for a vocabulary with capitals and accents
};

class WordPiece {
 public:
  // The line of a piece is its number, from 0. DataError with the file and the line when a piece is there twice or
  // empty, or [UNK], [CLS], [SEP] or [MASK] is missing.
  static WordPiece load(const std::filesystem::path& vocabulary, const WordPieceOptions& options = {});
  WordPiece(std::vector<std::string> pieces, const std::string& name, const WordPieceOptions& options = {});

  std::vector<int32_t> tokens(std::string_view text) const;  // UTF-8
  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  const std::string& piece(int64_t token) const { return pieces_.at(static_cast<size_t>(token)); }

  int32_t unknown() const { return unknown_; }      // [UNK]
  int32_t beginning() const { return beginning_; }  // [CLS]
  int32_t separator() const { return separator_; }  // [SEP]
  int32_t mask() const { return mask_; }            // [MASK]

 private:
  void append_word(const std::vector<char32_t>& word, std::vector<int32_t>& tokens) const;
  int32_t special(const char* piece, const std::string& name) const;

  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): what the library asks for
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  WordPieceOptions options_;
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> numbers_;
  size_t longest_ = 0;  // bytes of a piece, ## included
  int32_t unknown_ = 0, beginning_ = 0, separator_ = 0, mask_ = 0;
};

}  // namespace bonfire::data
