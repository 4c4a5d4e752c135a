#pragma once
// Mean and standard deviation of the pixels of images, by which a model's input is brought to mean 0 and deviation 1.

#include "bonfire/data/dataset.h"

namespace bonfire::data {

struct PixelStatistics {
  std::vector<float> mean = {}, deviation = {};  // [C], of pixels / 255
  int64_t images = 0;                            // that were looked at
};

// Of the first `count` images, u8 [H, W, C], or of `most` of them that are spread evenly where there are more. Exact:
// it is counted how often each value occurs, so threads make no difference.
PixelStatistics measure_pixels(const Dataset& images, int64_t count, int64_t most);

}  // namespace bonfire::data
