#pragma once
// ImageInput: what tasks on images give a model, and what a file of weights says of it.

#include "bonfire/train/tasks/task.h"

namespace bonfire::train {

struct ImageInput {
  Shape image;                         // [H, W, C]
  std::vector<float> mean, deviation;  // [C], of pixels / 255
  std::vector<std::string> class_names = {};

  Tensor normalized(const Tensor& pixels) const;  // u8 [N, H, W, C] → f32 [N, C, H, W]

  nn::SafetensorsMetadata metadata() const;
  // DataError for metadata that is damaged, and where the weights are of images of other channels. The file need not
  // say any.
  ImageInput as_trained(const nn::SafetensorsMetadata& said) const;
};

}  // namespace bonfire::train
