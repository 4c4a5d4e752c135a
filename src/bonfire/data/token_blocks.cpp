#include "bonfire/data/token_blocks.h"

#include <algorithm>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/text.h"
#include "bonfire/data/unicode.h"

namespace bonfire::data {

TokenBlocks::TokenBlocks(Row row, int64_t length, const std::string& name, TokenRange range)
    : row_(std::move(row)), length_(length), begin_(range.begin), end_(range.end) {
  BONFIRE_CHECK(length > 0 && begin_ >= 0);
  const auto all = static_cast<int64_t>(row_->size());
  if (end_ < 0) end_ = all;
  end_ = std::min(end_, all);
  if (end_ - begin_ < 2)
    throw_error<DataError>("[text] {} has {} tokens, expected at least 2: one to begin with and one to predict", name,
                           std::max<int64_t>(0, end_ - begin_));
}

int64_t TokenBlocks::size() const { return (end_ - begin_ - 1 + length_ - 1) / length_; }

Sample TokenBlocks::get(int64_t index) const {
  require_index(index);
  const int64_t first = begin_ + index * length_, count = std::min(length_, end_ - 1 - first);
  const auto tokens = std::span(*row_).subspan(static_cast<size_t>(first), static_cast<size_t>(count) + 1);
  std::vector<int64_t> input(static_cast<size_t>(length_), 0), label(static_cast<size_t>(length_), kNotATarget);
  std::copy(tokens.begin(), tokens.end() - 1, input.begin());
  std::copy(tokens.begin() + 1, tokens.end(), label.begin());
  auto array_of = [&](const std::vector<int64_t>& values) {
    Array array{DType::i64, {length_}, std::vector<std::byte>(values.size() * sizeof(int64_t))};
    std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
    return array;
  };
  return {array_of(input), array_of(label), {}};
}

TokenBlocks::Row load_tokens(const std::filesystem::path& file, const BytePairs& pairs) {
  base::MappedFile mapped(file);
  const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  if (const auto bad = pairs.is_bytes() ? std::nullopt : unicode::first_bad_byte(text))
    throw_error<DataError>("[text] {}: line {} is not UTF-8; convert the file (iconv -t utf-8)", file.string(),
                           1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*bad), '\n'));
  return std::make_shared<const std::vector<int32_t>>(pairs.tokens(text));
}

}  // namespace bonfire::data
