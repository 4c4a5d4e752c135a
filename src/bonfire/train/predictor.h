#pragma once
// Predictor: the best weights of a run, put to use.
//
//   train::Predictor predictor("runs/1");
//   for (const train::Guess& guess : predictor.guesses(predictor.open("seven.png"), 3)[0])
//     fmt::print("{} {:.1f} %\n", predictor.class_names()[guess.label], 100 * guess.probability);

#include <filesystem>
#include <span>

#include "bonfire/data/dataset.h"
#include "bonfire/models/make.h"
#include "bonfire/train/config.h"

namespace bonfire::train {

struct Guess {
  int64_t label = 0;
  double probability = 0, logit = 0;
};

class Predictor {
 public:
  // Overrides win over the run's own settings. DataError when the run has no weights, or they are not of images.
  explicit Predictor(const std::filesystem::path& run, std::span<const std::string> overrides = {});

  // The images of a file as the model wants them: one of a JPEG or PNG, all of an IDX file (plain or gzipped).
  std::vector<data::Array> open(const std::filesystem::path& file) const;

  // Of each image, the `most` likeliest classes, likeliest first.
  std::vector<std::vector<Guess>> guesses(std::span<const data::Array> images, size_t most) const;

  const std::vector<std::string>& class_names() const { return class_names_; }

 private:
  data::Array fit(data::Array image, const std::string& name) const;

  Config config_;
  Device place_;
  Shape image_;  // [H, W, C]
  std::vector<std::string> class_names_;
  std::vector<float> mean_, deviation_;  // [C]
  std::optional<models::Model> model_;
};

}  // namespace bonfire::train
