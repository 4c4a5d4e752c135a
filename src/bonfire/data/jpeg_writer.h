#pragma once
// JPEG files from pixels, through libjpeg-turbo.

#include "bonfire/data/dataset.h"

namespace bonfire::data {

// Of red, green and blue, u8 [H, W, 3], or of grey, u8 [H, W, 1]. Quality: 1 to 100. DataError when it is larger than a
// JPEG can be.
std::vector<std::byte> encode_jpeg(const Array& image, int quality);

}  // namespace bonfire::data
