#pragma once
// MaskedWords: the best weights of a run on text, put to use.
//
//   train::MaskedWords words("runs/1");
//   for (const train::WordGuess& guess : words.guesses("the sky is [MASK] .", 3)[0])
//     fmt::print("{} {:.1f} %\n", guess.piece, 100 * guess.probability);

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "bonfire/data/wordpiece.h"
#include "bonfire/models/make.h"
#include "bonfire/train/config/config.h"

namespace bonfire::train {

struct WordGuess {
  std::string piece;
  double probability = 0, logit = 0;
};

class MaskedWords {
 public:
  // Overrides win over the run's own settings. DataError when the run has no weights or its vocabulary is gone.
  explicit MaskedWords(const std::filesystem::path& run, std::span<const std::string> overrides = {});

  // Of each [MASK] in the sentence the `most` likeliest pieces, likeliest first. ConfigError when there is none, or
  // more text than the run's seq_length.
  std::vector<std::vector<WordGuess>> guesses(const std::string& sentence, size_t most) const;

 private:
  Config config_;
  data::WordPiece pieces_;
  Device place_;
  models::Model model_;
};

}  // namespace bonfire::train
