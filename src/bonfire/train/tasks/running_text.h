#pragma once
// The running text that a configuration names, as tokens: a text file, a folder with train.txt and perhaps test.txt, or
// what is built in. A vocabulary lies beside the text; without one its bytes are the tokens.

#include "bonfire/data/token_blocks.h"
#include "bonfire/models/gpt2.h"
#include "bonfire/train/config/config.h"

namespace bonfire::train {

struct RunningText {
  data::BytePairs pairs;
  data::TokenBlocks::Row train, test;  // may be the same row, of which each has a range
  data::TokenRange train_range, test_range;
  std::string title;  // "book.txt (bytes)"
};

// DataError where there is no text, or half a vocabulary; ConfigError where test_share counts for nothing.
RunningText open_running_text(const Config& config);

data::BytePairs open_byte_pairs(const Config& config);  // only its vocabulary

models::GPT2Options gpt2_options(const Config& config, int64_t vocabulary);  // ConfigError: seq_length above context

}  // namespace bonfire::train
