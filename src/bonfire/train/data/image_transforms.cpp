#include "bonfire/train/data/image_transforms.h"

#include <fmt/format.h>

#include <cmath>

#include "bonfire/base/error.h"

namespace bonfire::train {

namespace {

constexpr int64_t kPictureSize = 224;  // what models of pictures are made for

std::string crop_of(const Config& config, const StoredForm& stored) {
  if (config.crop != "auto") return config.crop;
  return stored.pictures ? "resized" : "none";
}

// Whether images must be brought to another size where they are not cropped.
bool resizes(const Config& config, const StoredForm& stored) {
  if (stored.pictures) return true;
  return image_shape(config, stored) != stored.shape;
}

std::pair<double, double> range_of(const char* key, const std::vector<double>& values) {
  if (values.size() != 2 || values[0] > values[1])
    throw_error<ConfigError>("[config] {} is [{}], expected two numbers, the smaller first", key,
                             fmt::join(values, ", "));
  return {values[0], values[1]};
}

// With crop: auto it depends on the data.
void require_crop_counts(const Config& config, const StoredForm& stored) {
  const Config usual;
  const std::pair<const char*, bool> given[] = {{"crop_area", config.crop_area != usual.crop_area},
                                                {"crop_ratio", config.crop_ratio != usual.crop_ratio},
                                                {"center_crop", config.center_crop != usual.center_crop}};
  for (const auto& [key, is_given] : given)
    if (is_given && crop_of(config, stored) != "resized")
      throw_error<ConfigError>(
          "[config] {} has no effect without crop: resized, which is the default of pictures in folders only; add it, "
          "or leave {} out",
          key, key);
}

}  // namespace

Shape image_shape(const Config& config, const StoredForm& stored) {
  if (stored.pictures) {
    int64_t size = config.image_size.value_or(kPictureSize);
    return {size, size, 3};
  }
  if (config.image_size) return {*config.image_size, *config.image_size, stored.shape[2]};
  if (crop_of(config, stored) == "resized" && stored.shape[0] != stored.shape[1])
    throw_error<ConfigError>("[config] crop: resized makes square images, and these are {} × {}; set image_size",
                             stored.shape[0], stored.shape[1]);
  return stored.shape;
}

data::Transform evaluation_transform(const Config& config, const StoredForm& stored) {
  Shape shape = image_shape(config, stored);
  if (crop_of(config, stored) == "resized") return data::center_crop({.size = shape[0], .share = config.center_crop});
  if (!resizes(config, stored)) return {};
  return data::resize({.size = {shape[0], shape[1]}});
}

data::Transform training_transform(const Config& config, const StoredForm& stored, const std::vector<float>& mean) {
  require_crop_counts(config, stored);
  Shape shape = image_shape(config, stored);
  double flip = config.flip.value_or(stored.pictures ? 0.5 : 0);
  std::string crop = crop_of(config, stored);
  std::vector<data::Transform> all;
  if (crop == "resized") {
    auto [least_area, most_area] = range_of("crop_area", config.crop_area);
    auto [least_ratio, most_ratio] = range_of("crop_ratio", config.crop_ratio);
    all.push_back(data::random_resized_crop({.size = shape[0],
                                             .least_area = least_area,
                                             .most_area = most_area,
                                             .least_ratio = least_ratio,
                                             .most_ratio = most_ratio,
                                             .flip = flip}));
  } else if (crop == "padded") {
    if (resizes(config, stored)) all.push_back(data::resize({.size = {shape[0], shape[1]}}));
    all.push_back(data::random_crop({.padding = config.crop_padding, .flip = flip}));
  } else if (resizes(config, stored)) {
    all.push_back(data::resize({.size = {shape[0], shape[1]}, .flip = flip}));
  } else if (flip > 0) {
    all.push_back(data::random_crop({.padding = 0, .flip = flip}));
  }
  if (config.random_erasing > 0) {
    std::vector<uint8_t> color;
    for (float value : mean)
      color.push_back(static_cast<uint8_t>(std::lround(std::min(1.0F, std::max(0.0F, value)) * 255)));
    all.push_back(data::random_erasing({.probability = config.random_erasing, .fill = color}));
  }
  return all.empty() ? data::Transform{} : data::in_turn(std::move(all));
}

}  // namespace bonfire::train
