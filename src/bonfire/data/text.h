#pragma once
// Text for BERT: lines of a file as sequences of tokens that are all of one length, and the masking of a step.
//
//   auto pieces = std::make_shared<data::WordPiece>(data::WordPiece::load("data/wiki/vocab.txt"));
//   data::DataLoader train(data::load_text("data/wiki/train.txt", *pieces, 128),
//                          {.batch_size = 16, .shuffle = true, .transform = data::mask_tokens(*pieces)});
//
// The tokens of all lines, with [SEP] after each line, are one long row. Sequence i is [CLS], the next length − 2 of
// them, [SEP]; the last one reaches back, so that it is full too. No token is padding, and none is wasted on it.

#include <filesystem>
#include <span>

#include "bonfire/data/dataset.h"
#include "bonfire/data/idx.h"
#include "bonfire/data/wordpiece.h"

namespace bonfire::data {

// Targets with this value count for nothing (cross_entropy's ignore_index).
constexpr int64_t kNotATarget = -100;

class Text final : public Dataset {
 public:
  // row: the tokens of all lines. DataError when there are fewer than one sequence takes; ConfigError for a length that
  // has no room for one.
  Text(std::vector<int32_t> row, int64_t length, const WordPiece& pieces, const std::string& name);

  int64_t size() const override;
  Sample get(int64_t index) const override;   // i64 [length] and i64 [length], all kNotATarget
  int64_t length() const { return length_; }  // tokens of a sequence

 private:
  std::vector<int32_t> row_;
  int64_t length_;
  int32_t beginning_, separator_;
};

// DataError with the file's name when it cannot be read, is not UTF-8 (and the line), or holds too little.
std::shared_ptr<Text> load_text(const std::filesystem::path& file, const WordPiece& pieces, int64_t length);
std::shared_ptr<Text> text_of_lines(std::span<const std::string> lines, const WordPiece& pieces, int64_t length,
                                    const std::string& name);

bool is_text(const std::filesystem::path& folder);                                  // whether it has a vocab.txt
std::filesystem::path text_file(const std::filesystem::path& folder, Split split);  // its train.txt or test.txt

// Calls visit with each line, without its end.
void for_each_line(std::span<const std::byte> file, const std::function<void(std::string_view)>& visit);

struct MaskOptions {
  double share = 0.15;       // of the tokens that are no [CLS] or [SEP]; at least one
  bool every_epoch = false;  // other tokens each epoch; false: always those of epoch 0, as an evaluation wants it
};

// Chooses tokens to be predicted: they become the label. Of these 8 of 10 become [MASK], 1 of 10 a random token, and 1
// of 10 stays what it is. A pure function of (seed, epoch, index).
Transform mask_tokens(const WordPiece& pieces, const MaskOptions& options = {});

}  // namespace bonfire::data
