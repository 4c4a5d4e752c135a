#include "bonfire/data/unicode.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "bonfire/data/unicode_tables.h"

namespace bonfire::data::unicode {

namespace {

constexpr char32_t kReplacement = 0xFFFD;

bool is_in(std::span<const Range> ranges, char32_t c) {
  auto behind = std::upper_bound(ranges.begin(), ranges.end(), c,
                                 [](char32_t value, const Range& range) { return value < range.first; });
  return behind != ranges.begin() && c <= (behind - 1)->last;
}

// A Hangul syllable is two or three letters by arithmetic: 21 vowels of 28 endings for each beginning.
void append_hangul(std::vector<char32_t>& text, char32_t syllable) {
  char32_t number = syllable - 0xAC00;
  text.push_back(0x1100 + number / 588);
  text.push_back(0x1161 + number % 588 / 28);
  if (number % 28 != 0) text.push_back(0x11A7 + number % 28);
}

}  // namespace

Character character_at(std::string_view text, size_t at) {
  constexpr Character kBad{kReplacement, 1, false};
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return kBad;
  char32_t c = lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return kBad;
    c = c << 6 | (byte(i) & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  bool valid = c >= kLeast[length] && c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
  return valid ? Character{c, length} : kBad;
}

std::vector<char32_t> decode(std::string_view utf8) {
  std::vector<char32_t> text;
  text.reserve(utf8.size());
  for (size_t at = 0; at < utf8.size();) {
    const Character one = character_at(utf8, at);
    text.push_back(one.code_point);
    at += one.bytes;
  }
  return text;
}

std::optional<size_t> first_bad_byte(std::string_view utf8) {
  for (size_t at = 0; at < utf8.size();) {
    const Character one = character_at(utf8, at);
    if (!one.valid) return at;
    at += one.bytes;
  }
  return {};
}

std::string readable(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Character one = character_at(bytes, at);
    if (!one.valid)
      text += fmt::format("\\x{:02X}", static_cast<unsigned char>(bytes[at]));
    else
      text += bytes.substr(at, one.bytes);
    at += one.bytes;
  }
  return text;
}

void append_utf8(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | c >> 6);
    text += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | c >> 12);
    text += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | c >> 18);
    text += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    text += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || c == '\t' || c == '\n' || c == '\r';
  return c == 0x2028 || c == 0x2029 || is_in({spaces, spaces_count}, c);
}

bool is_control(char32_t c) {
  if (c < 0x80) return (c < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  return is_in({controls, controls_count}, c);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  return is_in({punctuation, punctuation_count}, c);
}

bool is_ideograph(char32_t c) {
  constexpr Range kBlocks[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                               {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return is_in(kBlocks, c);
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_in({letters, letters_count}, c);
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return is_in({numbers, numbers_count}, c);
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || is_space(c);  // of the other characters it is spaces, and U+2028 and U+2029
}

void append_folded(std::vector<char32_t>& text, char32_t c) {
  if (c < 0x80) {
    text.push_back(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return;
  }
  if (c >= 0xAC00 && c <= 0xD7A3) return append_hangul(text, c);
  if (is_in({marks, marks_count}, c)) return;
  const LongFold* several = std::lower_bound(long_folds, long_folds + long_folds_count, c,
                                             [](const LongFold& fold, char32_t value) { return fold.from < value; });
  if (several != long_folds + long_folds_count && several->from == c) {
    for (uint32_t part : several->to)
      if (part != 0) text.push_back(part);
    return;
  }
  const Fold* behind = std::upper_bound(folds, folds + folds_count, c,
                                        [](char32_t value, const Fold& fold) { return value < fold.first; });
  if (behind != folds) {
    const Fold& fold = *(behind - 1);
    char32_t distance = c - fold.first;
    if (distance % fold.step == 0 && distance / fold.step < fold.count) c = fold.target + distance;
  }
  text.push_back(c);
}

}  // namespace bonfire::data::unicode
