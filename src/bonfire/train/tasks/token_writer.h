#pragma once
// TokenWriter: a run on running text, put to use: it goes on with a text, token by token.
//
//   train::TokenWriter writer("runs/1");
//   writer.write("The fire", {.tokens = 100, .temperature = 0.8}, [](std::string_view bytes) { … });
//
// The model sees the tokens so far with filler behind them, which nothing looks at since attention is causal, so that
// their number is one of few: 32, 64, 128 … up to the seq_length of the run, and a plan serves many tokens. Of a longer
// text it sees the last seq_length tokens.

#include "bonfire/models/gpt2.h"
#include "bonfire/train/tasks/known_tasks.h"
#include "bonfire/train/tasks/running_text.h"

namespace bonfire::train {

class TokenWriter final : public Writer {
 public:
  // Overrides win over the run's own settings; weights: a file or a checkpoint, empty: the run's best. DataError when
  // the weights or the vocabulary are gone.
  explicit TokenWriter(const std::filesystem::path& run, const std::filesystem::path& weights = {},
                       std::span<const std::string> overrides = {});

  // Ends before all tokens are written where the text does: at <|endoftext|>. ConfigError for a prompt without tokens.
  int64_t write(const std::string& prompt, const WritingOptions& options,
                const std::function<void(std::string_view)>& sink) const override;

  // Of the token after these, the last seq_length of which are looked at: [vocabulary].
  std::vector<float> logits(std::span<const int32_t> tokens) const;
  const data::BytePairs& pairs() const { return pairs_; }

 private:
  Config config_;
  data::BytePairs pairs_;
  Device place_;
  models::GPT2LMHeadModel model_;
};

// The likeliest, the first of several; with a temperature one that is drawn: draw `number` of the seed.
int64_t choose_token(std::span<const float> logits, const WritingOptions& options, uint64_t number);

}  // namespace bonfire::train
