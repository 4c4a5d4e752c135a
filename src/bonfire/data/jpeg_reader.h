#pragma once
// JPEG files through libjpeg-turbo; see image_reader.h.

#include "bonfire/data/image_reader.h"

namespace bonfire::data {

std::unique_ptr<ImageReader> open_jpeg(std::span<const std::byte> file, const std::string& name);

}  // namespace bonfire::data
