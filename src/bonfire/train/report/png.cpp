#include "bonfire/train/report/png.h"

#include <png.h>

#include "bonfire/base/error.h"

namespace bonfire::train {

std::string encode_png(std::span<const std::byte> pixels, const Shape& shape) {
  BONFIRE_CHECK(shape.rank() == 3 && (shape[2] == 1 || shape[2] == 3));
  BONFIRE_CHECK(pixels.size() == static_cast<size_t>(shape.count()));
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(shape[1]);
  image.height = static_cast<png_uint_32>(shape[0]);
  image.format = shape[2] == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::string file(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = file.size();
  if (png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr) == 0)
    throw_error<DataError>("[png] libpng cannot write an image of {}: {}", to_string(shape), image.message);
  file.resize(size);
  return file;
}

std::string encode_base64(std::string_view bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kLetters[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

}  // namespace bonfire::train
