#pragma once
// Images as PNG files, for pages that hold their pictures inside.

#include <cstddef>
#include <span>
#include <string>

#include "bonfire/tensor/shape.h"

namespace bonfire::train {

std::string encode_png(std::span<const std::byte> pixels, const Shape& shape);  // u8 [H, W, C], C is 1 or 3
std::string encode_base64(std::string_view bytes);

}  // namespace bonfire::train
