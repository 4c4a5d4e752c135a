#pragma once
// ImageRun: the best weights of a run on images, and files as its model wants them. What is made of the outputs is the
// task's: train/tasks/predictor.h, train/tasks/boxes.cpp.

#include <filesystem>
#include <functional>
#include <span>

#include "bonfire/data/dataset.h"
#include "bonfire/models/make.h"
#include "bonfire/train/config/config.h"
#include "bonfire/train/tasks/image_input.h"

namespace bonfire::train {

struct Guess {
  int64_t label = 0;
  double probability = 0, logit = 0;
};

struct ImageRunOptions {
  std::string task = "image_classification";  // as models/make.cpp names it
  int64_t more_channels = 0;                  // that the model is given besides the image's
};

class ImageRun {
 public:
  // Overrides win over the run's own settings. DataError when the run has no weights, or is not of that task.
  ImageRun(const std::filesystem::path& run, std::span<const std::string> overrides, const ImageRunOptions& options);

  // The images of a file as the model wants them: one of a JPEG or PNG, all of an IDX file (plain or gzipped).
  std::vector<data::Array> open(const std::filesystem::path& file) const;
  static std::string name_of(const std::string& file, size_t images, size_t index);  // "seven.png", "digits.idx[3]"

  // compute(model, u8 [N, H, W, C]), then what it returned and N.
  void for_each_batch(
      std::span<const data::Array> images,
      const std::function<std::vector<Tensor>(const models::Model& model, const Tensor& pixels)>& compute,
      const std::function<void(std::span<const Tensor> results, size_t count)>& visit) const;

  const ImageInput& input() const { return input_; }

 private:
  data::Array fit(data::Array image, const std::string& name) const;

  Config config_;
  Device place_;
  ImageInput input_;
  std::optional<models::Model> model_;
};

// The `most` likeliest classes of one sample, likeliest first. Both are [classes].
std::vector<Guess> likeliest(std::span<const float> logits, std::span<const float> shares, size_t most);

}  // namespace bonfire::train
