#include "bonfire/data/stored_images.h"

#include "bonfire/base/error.h"

namespace bonfire::data {

StoredImages::StoredImages(const Shape& shape, std::vector<uint8_t> images, std::vector<uint8_t> labels,
                           std::vector<std::string> names)
    : shape_(shape), images_(std::move(images)), labels_(std::move(labels)), names_(std::move(names)) {
  if (images_.size() != labels_.size() * static_cast<size_t>(shape.count()))
    throw_error<DataError>("[stored_images] {} bytes of images, expected {} × {}", images_.size(), labels_.size(),
                           to_string(shape));
}

Sample StoredImages::get(int64_t index) const {
  require_index(index);
  auto pixels = static_cast<size_t>(shape_.count());
  const auto* from = reinterpret_cast<const std::byte*>(images_.data()) + static_cast<size_t>(index) * pixels;
  return image_sample({from, from + pixels}, shape_, labels_[static_cast<size_t>(index)]);
}

int64_t StoredImages::label(int64_t index) const {
  require_index(index);
  return labels_[static_cast<size_t>(index)];
}

}  // namespace bonfire::data
