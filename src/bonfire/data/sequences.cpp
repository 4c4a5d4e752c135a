#include "bonfire/data/sequences.h"

#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::data {

namespace {

constexpr int64_t kMarked = 5, kLetters = 15;  // letters that may stand after the mark; all
constexpr int64_t kMarkToken = kLetters;       // its token

int64_t class_of(const std::vector<int64_t>& tokens) {
  for (size_t i = 0; i + 1 < tokens.size(); ++i)
    if (tokens[i] == kMarkToken) return tokens[i + 1];
  BONFIRE_CHECK(false);
}

}  // namespace

std::span<const std::string> Sequences::symbols() {
  static const std::vector<std::string> all{"a", "b", "c", "d", "e", "f", "g", "h",
                                            "i", "j", "k", "l", "m", "n", "o", ">"};
  return all;
}

Sequences::Sequences(const SequencesOptions& options) : options_(options) {
  if (options.size < 0 || options.length < 2)
    throw_error<ConfigError>("[sequences] size is {} and length {}, expected 0 and 2 or more", options.size,
                             options.length);
}

std::vector<int64_t> Sequences::tokens(int64_t index) const {
  require_index(index);
  const uint64_t stream = 2 * static_cast<uint64_t>(index) + (options_.split == Split::test ? 1 : 0);
  uint64_t next = 0;
  auto below = [&](int64_t limit) {
    return static_cast<int64_t>(uniform_at(options_.seed, stream, next++) * static_cast<float>(limit));
  };
  std::vector<int64_t> all(static_cast<size_t>(options_.length));
  for (int64_t& token : all) token = below(kLetters);
  const auto mark = static_cast<size_t>(below(options_.length - 1));
  all[mark] = kMarkToken;
  all[mark + 1] = below(kMarked);
  return all;
}

Sample Sequences::get(int64_t index) const {
  const std::vector<int64_t> all = tokens(index);
  const int64_t label = class_of(all);
  Sample sample{{DType::i64, {options_.length}, std::vector<std::byte>(sizeof(int64_t) * all.size())},
                {DType::i64, {}, std::vector<std::byte>(sizeof label)},
                {}};
  std::memcpy(sample.input.bytes.data(), all.data(), sample.input.bytes.size());
  std::memcpy(sample.label.bytes.data(), &label, sizeof label);
  return sample;
}

int64_t Sequences::label(int64_t index) const { return class_of(tokens(index)); }

std::vector<std::string> Sequences::class_names() const { return {symbols().begin(), symbols().begin() + kMarked}; }

}  // namespace bonfire::data
