#include "bonfire/data/byte_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/text.h"
#include "bonfire/data/unicode.h"

namespace bonfire::data {

namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr size_t kLongestKept = 64;            // bytes of a word whose tokens are remembered
constexpr size_t kMostKept = size_t{1} << 18;  // words
constexpr int64_t kMostTokens = int64_t{1} << 24;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The files write each byte as a character that can be seen: printable ones of Latin-1 as they are, the others, in
// order, as the characters from U+0100 on. A space is Ġ.
char32_t shown(unsigned char byte) {
  auto is_shown = [](unsigned value) {
    return (value >= '!' && value <= '~') || (value >= 0xA1 && value <= 0xAC) || value >= 0xAE;
  };
  if (is_shown(byte)) return byte;
  char32_t hidden = 0;
  for (unsigned value = 0; value < byte; ++value) hidden += is_shown(value) ? 0 : 1;
  return 0x100 + hidden;
}

const std::unordered_map<char32_t, unsigned char>& bytes_shown() {
  static const auto all = [] {
    std::unordered_map<char32_t, unsigned char> map;
    for (unsigned value = 0; value < 256; ++value)
      map[shown(static_cast<unsigned char>(value))] = static_cast<unsigned char>(value);
    return map;
  }();
  return all;
}

// The bytes that a piece stands for; empty where it has a character that stands for none.
std::optional<std::string> bytes_of_piece(std::string_view piece) {
  std::string bytes;
  for (char32_t c : unicode::decode(piece)) {
    const auto found = bytes_shown().find(c);
    if (found == bytes_shown().end()) return {};
    bytes += static_cast<char>(found->second);
  }
  return bytes;
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// --- words -----------------------------------------------------------------------------------------------------------

enum class Kind : uint8_t { letter, number, space, other };

Kind kind_of(char32_t c) {
  if (unicode::is_white_space(c)) return Kind::space;
  if (unicode::is_letter(c)) return Kind::letter;
  return unicode::is_number(c) ? Kind::number : Kind::other;
}

// The end of the run of characters of that kind that begins at `at`.
size_t end_of_run(std::string_view text, size_t at, Kind kind) {
  while (at < text.size()) {
    const unicode::Character one = unicode::character_at(text, at);
    if (kind_of(one.code_point) != kind) break;
    at += one.bytes;
  }
  return at;
}

// White space up to the end of the text is one word. In front of something else its last character is left for what
// follows, unless it is alone.
size_t end_of_space(std::string_view text, size_t at) {
  size_t end = at, last = at;  // last: where the last character begins
  while (end < text.size()) {
    const unicode::Character one = unicode::character_at(text, end);
    if (!unicode::is_white_space(one.code_point)) return last == at ? end : last;
    last = end;
    end += one.bytes;
  }
  return end;
}

}  // namespace

size_t end_of_word(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (rest.starts_with(ending)) return at + ending.size();
  const size_t begin = rest.starts_with(' ') && rest.size() > 1 ? at + 1 : at;
  const Kind kind = kind_of(unicode::character_at(text, begin).code_point);
  return kind == Kind::space ? end_of_space(text, at) : end_of_run(text, begin, kind);
}

// --- files -----------------------------------------------------------------------------------------------------------

BytePairs::BytePairs() {
  for (int32_t byte = 0; byte < 256; ++byte) {
    pieces_.emplace_back(1, static_cast<char>(byte));
    of_byte_[static_cast<size_t>(byte)] = byte;
  }
}

BytePairs BytePairs::load(const std::filesystem::path& folder) {
  BytePairs pairs;
  pairs.pieces_.clear();
  pairs.take_vocabulary(base::read_file(folder / "vocab.json"), (folder / "vocab.json").string());
  pairs.take_merges(base::read_file(folder / "merges.txt"), (folder / "merges.txt").string());
  pairs.numbers_.clear();
  return pairs;
}

BytePairs BytePairs::in(const std::filesystem::path& folder) {
  const bool has_pieces = base::exists(folder / "vocab.json"), has_merges = base::exists(folder / "merges.txt");
  if (has_pieces != has_merges)
    throw_error<DataError>(
        "[byte_pairs] {} has {} but no {}: a vocabulary is both; add it, or remove the other, and bytes are tokens",
        folder.string(), has_pieces ? "vocab.json" : "merges.txt", has_pieces ? "merges.txt" : "vocab.json");
  return has_pieces ? load(folder) : BytePairs();
}

void BytePairs::take_vocabulary(std::span<const std::byte> json, const std::string& name) {
  const auto all = nlohmann::json::parse(text_of(json), nullptr, false);
  if (!all.is_object() || all.empty())
    throw_error<DataError>("[byte_pairs] {} is no JSON object, expected pieces and their numbers as GPT-2's: {}", name,
                           R"({"!": 0, "the": 1, …})");
  const auto count = static_cast<int64_t>(all.size());
  if (count > kMostTokens)
    throw_error<DataError>("[byte_pairs] {} has {} pieces, expected at most {}", name, count, kMostTokens);
  pieces_.resize(static_cast<size_t>(count));
  std::vector<bool> taken(pieces_.size());
  for (const auto& [piece, number] : all.items()) {
    const int64_t token = number.is_number_integer() ? number.get<int64_t>() : -1;
    if (token < 0 || token >= count || taken[static_cast<size_t>(token)])
      throw_error<DataError>("[byte_pairs] {}: '{}' has the number {}, expected each from 0 to {} once", name, piece,
                             number.dump(), count - 1);
    taken[static_cast<size_t>(token)] = true;
    std::optional<std::string> bytes = piece == kEndOfText ? std::string(piece) : bytes_of_piece(piece);
    if (!bytes || bytes->empty())
      throw_error<DataError>(
          "[byte_pairs] {}: '{}' does not stand for bytes; expected a vocabulary as GPT-2's, in which a space is Ġ",
          name, piece);
    pieces_[static_cast<size_t>(token)] = std::move(*bytes);
    if (piece == kEndOfText) end_of_text_ = static_cast<int32_t>(token);
    numbers_.emplace(piece, static_cast<int32_t>(token));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string piece;
    unicode::append_utf8(piece, shown(static_cast<unsigned char>(byte)));
    const auto found = numbers_.find(piece);
    if (found == numbers_.end())
      throw_error<DataError>("[byte_pairs] {} has no piece '{}' for the byte {}, expected one for every byte", name,
                             piece, byte);
    of_byte_[byte] = found->second;
  }
}

void BytePairs::take_merges(std::span<const std::byte> lines, const std::string& name) {
  int64_t number = 0;
  for_each_line(lines, [&](std::string_view line) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    add_merge(line, fmt::format("{}: line {}", name, number));
  });
  if (merges_.empty()) throw_error<DataError>("[byte_pairs] {} has no merges, expected two pieces a line", name);
}

void BytePairs::add_merge(std::string_view line, const std::string& where) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos)
    throw_error<DataError>("[byte_pairs] {} is '{}', expected two pieces with a space between them", where, line);
  const std::string left(line.substr(0, space)), right(line.substr(space + 1));
  auto number_of = [&](const std::string& piece) {
    const auto found = numbers_.find(piece);
    if (found == numbers_.end())
      throw_error<DataError>("[byte_pairs] {} has '{}', which is not in vocab.json; do both belong together?", where,
                             piece);
    return found->second;
  };
  const auto rank = static_cast<int32_t>(merges_.size());
  const auto [at, is_new] = merges_.try_emplace(pair_of(number_of(left), number_of(right)), Merge{});
  if (!is_new) throw_error<DataError>("[byte_pairs] {} has the merge '{}' again; remove one", where, line);
  at->second = {rank, number_of(left + right)};
}

// --- tokens ----------------------------------------------------------------------------------------------------------

// Neighbours that can be merged wait in the order of their merges, then of their places. What is merged away leaves its
// place empty; whoever waited with it is not what it was, and is passed over.
std::vector<int32_t> BytePairs::merged(std::string_view word) const {
  constexpr int32_t kNone = -1;
  struct Symbol {
    int32_t token, before, after;  // the latter two: places
  };
  struct Waiting {
    int32_t rank, place, merged;
    bool operator>(const Waiting& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
  };
  const auto count = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (int32_t i = 0; i < count; ++i)
    symbols.push_back(
        {of_byte_[static_cast<unsigned char>(word[static_cast<size_t>(i)])], i - 1, i + 1 < count ? i + 1 : kNone});
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting;
  auto at = [&](int32_t place) -> Symbol& { return symbols[static_cast<size_t>(place)]; };
  auto merge_of = [&](int32_t place) -> const Merge* {
    if (place == kNone || at(place).token == kNone || at(place).after == kNone) return nullptr;
    const auto found = merges_.find(pair_of(at(place).token, at(at(place).after).token));
    return found == merges_.end() ? nullptr : &found->second;
  };
  auto wait = [&](int32_t place) {
    if (const Merge* merge = merge_of(place)) waiting.push({merge->rank, place, merge->merged});
  };
  for (int32_t i = 0; i < count; ++i) wait(i);
  while (!waiting.empty()) {
    const Waiting next = waiting.top();
    waiting.pop();
    const Merge* merge = merge_of(next.place);
    if (merge == nullptr || merge->rank != next.rank) continue;
    Symbol& left = at(next.place);
    Symbol& right = at(left.after);
    left.token = next.merged;
    right.token = kNone;
    left.after = right.after;
    if (left.after != kNone) at(left.after).before = next.place;
    wait(left.before);
    wait(next.place);
  }
  std::vector<int32_t> tokens;
  for (const Symbol& symbol : symbols)
    if (symbol.token != kNone) tokens.push_back(symbol.token);
  return tokens;
}

void BytePairs::append_text(std::string_view text, Known& known, std::vector<int32_t>& tokens) const {
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_word(text, at);
    const std::string_view word = text.substr(at, end - at);
    at = end;
    auto found = known.find(word);
    if (found == known.end()) {
      std::vector<int32_t> fresh = merged(word);
      if (word.size() > kLongestKept || known.size() >= kMostKept) {
        tokens.insert(tokens.end(), fresh.begin(), fresh.end());
        continue;
      }
      found = known.emplace(word, std::move(fresh)).first;
    }
    tokens.insert(tokens.end(), found->second.begin(), found->second.end());
  }
}

std::vector<int32_t> BytePairs::tokens(std::string_view text) const {
  std::vector<int32_t> tokens;
  if (is_bytes()) {
    for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  Known known;
  while (end_of_text_) {
    const size_t at = text.find(kEndOfText);
    if (at == std::string_view::npos) break;
    append_text(text.substr(0, at), known, tokens);
    tokens.push_back(*end_of_text_);
    text.remove_prefix(at + kEndOfText.size());
  }
  append_text(text, known, tokens);
  return tokens;
}

std::string BytePairs::text(std::span<const int32_t> tokens) const {
  std::string text;
  for (int32_t token : tokens) text += bytes_of(token);
  return text;
}

}  // namespace bonfire::data
