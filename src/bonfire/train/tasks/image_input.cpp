#include "bonfire/train/tasks/image_input.h"

#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/ops/image.h"

namespace bonfire::train {

Tensor ImageInput::normalized(const Tensor& pixels) const {
  const Shape channels{image[2]};
  return normalize_image(pixels, Tensor::from<float>(mean, channels, pixels.device()),
                         Tensor::from<float>(deviation, channels, pixels.device()), {.channels_last = true});
}

nn::SafetensorsMetadata ImageInput::metadata() const {
  return {{"image", nlohmann::json(image.extents()).dump()},
          {"class_names", nlohmann::json(class_names).dump()},
          {"mean", nlohmann::json(mean).dump()},
          {"deviation", nlohmann::json(deviation).dump()}};
}

ImageInput ImageInput::as_trained(const nn::SafetensorsMetadata& said) const {
  if (!said.contains("mean")) return *this;
  ImageInput trained = *this;
  try {
    trained.mean = nlohmann::json::parse(said.at("mean")).get<std::vector<float>>();
    trained.deviation = nlohmann::json::parse(said.at("deviation")).get<std::vector<float>>();
  } catch (const std::exception& error) {
    throw_error<DataError>("[train] mean and deviation of pixels in the weights: {}", error.what());
  }
  if (trained.mean.size() != mean.size() || trained.deviation.size() != mean.size())
    throw_error<DataError>("[train] the weights were trained on images of {} channels, the data has {}",
                           trained.mean.size(), mean.size());
  return trained;
}

}  // namespace bonfire::train
