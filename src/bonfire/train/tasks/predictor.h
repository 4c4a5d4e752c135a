#pragma once
// Predictor: the best weights of a run, put to use.
//
//   train::Predictor predictor("runs/1");
//   for (const train::Guess& guess : predictor.guesses(predictor.open("seven.png"), 3)[0])
//     fmt::print("{} {:.1f} %\n", predictor.class_names()[guess.label], 100 * guess.probability);

#include "bonfire/train/data/image_run.h"

namespace bonfire::train {

class Predictor {
 public:
  // Overrides win over the run's own settings. DataError when the run has no weights, or they do not classify images.
  explicit Predictor(const std::filesystem::path& run, std::span<const std::string> overrides = {})
      : run_(run, overrides, {}) {}

  // The images of a file as the model wants them: one of a JPEG or PNG, all of an IDX file (plain or gzipped).
  std::vector<data::Array> open(const std::filesystem::path& file) const { return run_.open(file); }

  // Of each image, the `most` likeliest classes, likeliest first.
  std::vector<std::vector<Guess>> guesses(std::span<const data::Array> images, size_t most) const;

  const std::vector<std::string>& class_names() const { return run_.input().class_names; }

 private:
  ImageRun run_;
};

}  // namespace bonfire::train
