#pragma once
// PNG files through libpng; see image_reader.h.

#include "bonfire/data/image_reader.h"

namespace bonfire::data {

std::unique_ptr<ImageReader> open_png(std::span<const std::byte> file, const std::string& name);

}  // namespace bonfire::data
