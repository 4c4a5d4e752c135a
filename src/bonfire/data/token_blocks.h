#pragma once
// Running text for models that predict the next token: one long row of tokens, in blocks that lie one after the other.
//
//   auto tokens = std::make_shared<const std::vector<int32_t>>(pairs.tokens(text));
//   data::TokenBlocks blocks(tokens, 1024, "the book");
//
// Block i has the tokens length · i … as input, and as label for each of them the one after it: so every token but the
// first is predicted exactly once. Places of the last block that the text does not fill ask for nothing.

#include <filesystem>
#include <memory>
#include <vector>

#include "bonfire/data/byte_pairs.h"
#include "bonfire/data/dataset.h"

namespace bonfire::data {

struct TokenRange {
  int64_t begin = 0;
  int64_t end = -1;  // after the last; −1: of the row
};

class TokenBlocks final : public Dataset {
 public:
  using Row = std::shared_ptr<const std::vector<int32_t>>;
  // DataError naming `name` where there are no two tokens in the range.
  TokenBlocks(Row row, int64_t length, const std::string& name, TokenRange range = {});

  int64_t size() const override;
  Sample get(int64_t index) const override;  // i64 [length] both; a label that asks for nothing is kNotATarget

 private:
  Row row_;
  int64_t length_, begin_, end_;
};

// The tokens of a file. With a vocabulary: DataError with the line of what is not UTF-8.
TokenBlocks::Row load_tokens(const std::filesystem::path& file, const BytePairs& pairs);

}  // namespace bonfire::data
