#pragma once
// What a tokeniser must know about Unicode: UTF-8 in and out, kinds of characters, lower case without accents. By
// tables (unicode_tables.cpp), so that it does not depend on the system's locale.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bonfire::data::unicode {

// One of a text, and how many bytes it has. A byte that is no UTF-8 is a character of its own, which is not valid and
// stands as U+FFFD: of overlong forms, surrogates and code points beyond U+10FFFF too.
struct Character {
  char32_t code_point;
  size_t bytes;
  bool valid = true;
};
Character character_at(std::string_view utf8, size_t at);

// The code points of a text; a byte that is no UTF-8 becomes U+FFFD.
std::vector<char32_t> decode(std::string_view utf8);
std::optional<size_t> first_bad_byte(std::string_view utf8);  // its position; empty when all is UTF-8
std::string readable(std::string_view bytes);  // UTF-8: each byte that is none becomes \xE9, in four characters
void append_utf8(std::string& text, char32_t code_point);

bool is_space(char32_t c);        // blank, tab, ends of lines and paragraphs, category Zs
bool is_control(char32_t c);      // categories Cc, Cf and Co, without tab and line ends
bool is_punctuation(char32_t c);  // categories P*, and every ASCII character that is no letter, digit or space
bool is_ideograph(char32_t c);    // Chinese characters, which are words of their own
bool is_letter(char32_t c);       // categories L*
bool is_number(char32_t c);       // categories N*
bool is_white_space(char32_t c);  // as regular expressions have it: \s, the property White_Space

// Decomposed, without accents (category Mn), in lower case: É becomes e, an accent alone becomes nothing, 한 becomes
// its three parts.
void append_folded(std::vector<char32_t>& text, char32_t c);

}  // namespace bonfire::data::unicode
