#pragma once
// What a configuration does to images.

#include "bonfire/data/transforms.h"
#include "bonfire/train/config/config.h"

namespace bonfire::train {

// Images as the data set has them.
struct StoredForm {
  bool pictures = false;  // JPEG and PNG files of any size, not decoded yet
  Shape shape;            // [H, W, C] of all images otherwise
};

Shape image_shape(const Config& config, const StoredForm& stored);  // [H, W, C] that the model sees

// Both bring images to that shape; an empty one leaves them as they are. ConfigError for settings that do not fit.
data::Transform evaluation_transform(const Config& config, const StoredForm& stored);
data::Transform training_transform(const Config& config, const StoredForm& stored, const std::vector<float>& mean);

}  // namespace bonfire::train
