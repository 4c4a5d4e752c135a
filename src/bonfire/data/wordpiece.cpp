#include "bonfire/data/wordpiece.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/unicode.h"

namespace bonfire::data {

namespace {

constexpr std::string_view kInside = "##";       // in front of a piece that does not begin a word
constexpr size_t kLongestWord = 100;             // code points; longer ones are unknown
constexpr size_t kMostPieces = size_t{1} << 24;  // of which a random one is drawn by 24 bits

// What text is made of, as BERT sees it: words in the order of the text.
class Words {
 public:
  explicit Words(const WordPieceOptions& options) : options_(options) {}

  template <class Visit>
  void visit(std::string_view text, const Visit& visit) {
    for (char32_t c : unicode::decode(text)) {
      if (c == 0 || c == 0xFFFD || unicode::is_control(c)) continue;
      if (unicode::is_space(c)) {
        end(visit);
      } else if (unicode::is_ideograph(c)) {
        end(visit);
        add(c, visit);
        end(visit);
      } else {
        add(c, visit);
      }
    }
    end(visit);
  }

 private:
  // What a character becomes may be punctuation where it was none, and the other way round: look at the result.
  template <class Visit>
  void add(char32_t c, const Visit& visit) {
    folded_.clear();
    if (options_.lower_case)
      unicode::append_folded(folded_, c);
    else
      folded_.push_back(c);
    for (char32_t part : folded_) {
      if (unicode::is_punctuation(part)) {
        end(visit);
        word_.push_back(part);
        end(visit);
      } else if (unicode::is_space(part)) {
        end(visit);
      } else {
        word_.push_back(part);
      }
    }
  }

  template <class Visit>
  void end(const Visit& visit) {
    if (!word_.empty()) visit(word_);
    word_.clear();
  }

  WordPieceOptions options_;
  std::vector<char32_t> word_, folded_;
};

}  // namespace

WordPiece WordPiece::load(const std::filesystem::path& vocabulary, const WordPieceOptions& options) {
  std::vector<std::byte> bytes = base::read_file(vocabulary);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<std::string> pieces;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    pieces.emplace_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {std::move(pieces), vocabulary.string(), options};
}

WordPiece::WordPiece(std::vector<std::string> pieces, const std::string& name, const WordPieceOptions& options)
    : options_(options), pieces_(std::move(pieces)) {
  if (pieces_.size() > kMostPieces)
    throw_error<DataError>("[wordpiece] {}: {} lines, expected at most {}; is it a vocabulary, a piece a line?", name,
                           pieces_.size(), kMostPieces);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const std::string& piece = pieces_[i];
    if (piece.empty()) throw_error<DataError>("[wordpiece] {}: line {} is empty, expected a piece", name, i + 1);
    if (auto bad = unicode::first_bad_byte(piece))
      throw_error<DataError>("[wordpiece] {}: line {} is not UTF-8 at its byte {}; is it a vocabulary?", name, i + 1,
                             *bad + 1);
    auto [at, is_new] = numbers_.emplace(piece, static_cast<int32_t>(i));
    if (!is_new)
      throw_error<DataError>("[wordpiece] {}: line {} has the piece '{}' of line {} again; remove one", name, i + 1,
                             piece, at->second + 1);
    longest_ = std::max(longest_, piece.size());
  }
  unknown_ = special("[UNK]", name);
  beginning_ = special("[CLS]", name);
  separator_ = special("[SEP]", name);
  mask_ = special("[MASK]", name);
}

int32_t WordPiece::special(const char* piece, const std::string& name) const {
  auto at = numbers_.find(std::string_view(piece));
  if (at == numbers_.end())
    throw_error<DataError>("[wordpiece] {}: {} is not among its {} pieces; expected BERT's vocab.txt, a piece a line",
                           name, piece, pieces_.size());
  return at->second;
}

std::vector<int32_t> WordPiece::tokens(std::string_view text) const {
  std::vector<int32_t> tokens;
  Words(options_).visit(text, [&](const std::vector<char32_t>& word) { append_word(word, tokens); });
  return tokens;
}

// The longest piece that the word begins with, then the longest that what is left begins with, and so on; where there
// is none the whole word is unknown.
void WordPiece::append_word(const std::vector<char32_t>& word, std::vector<int32_t>& tokens) const {
  if (word.size() > kLongestWord) {
    tokens.push_back(unknown_);
    return;
  }
  std::string bytes;
  std::vector<size_t> ends;  // after each code point
  for (char32_t c : word) {
    unicode::append_utf8(bytes, c);
    ends.push_back(bytes.size());
  }
  size_t before = tokens.size(), begin = 0, first_end = 0;
  std::string key;
  while (begin < bytes.size()) {
    key = begin > 0 ? kInside : "";
    size_t prefix = key.size();
    key.append(bytes, begin);
    bool found = false;
    for (size_t i = ends.size(); i > first_end && !found; --i) {
      size_t length = prefix + ends[i - 1] - begin;
      if (length > longest_) continue;
      auto at = numbers_.find(std::string_view(key).substr(0, length));
      if (at == numbers_.end()) continue;
      tokens.push_back(at->second);
      begin = ends[i - 1];
      first_end = i;
      found = true;
    }
    if (!found) {
      tokens.resize(before);
      tokens.push_back(unknown_);
      return;
    }
  }
}

}  // namespace bonfire::data
