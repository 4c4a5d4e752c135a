#pragma once
// Images of one size that are all in memory, with their labels.

#include "bonfire/data/dataset.h"

namespace bonfire::data {

class StoredImages final : public Dataset {
 public:
  // images: [N, H, W, C]; shape: [H, W, C]; labels: [N]. DataError when the numbers do not fit together.
  StoredImages(const Shape& shape, std::vector<uint8_t> images, std::vector<uint8_t> labels,
               std::vector<std::string> names = {});

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  Sample get(int64_t index) const override;
  int64_t label(int64_t index) const override;
  std::vector<std::string> class_names() const override { return names_; }
  const Shape& image_shape() const { return shape_; }  // [H, W, C]

 private:
  Shape shape_;
  std::vector<uint8_t> images_, labels_;
  std::vector<std::string> names_;
};

}  // namespace bonfire::data
