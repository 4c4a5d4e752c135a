#include "bonfire/data/image_reader.h"

#include "bonfire/base/error.h"
#include "bonfire/data/jpeg_reader.h"
#include "bonfire/data/png_reader.h"

namespace bonfire::data {

namespace {

bool begins_with(std::span<const std::byte> file, std::string_view bytes) {
  if (file.size() < bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i)
    if (file[i] != static_cast<std::byte>(bytes[i])) return false;
  return true;
}

// More than a file of a few bytes may claim: a picture of this size is half a gigabyte.
void require_reasonable(ImageSize size, const std::string& name) {
  constexpr int64_t kMost = 178'956'970;  // pixels, as Pillow
  if (size.height * size.width > kMost)
    throw_error<DataError>(
        "[image] {}: {} × {} pixels, expected at most {}; the file is damaged, or must be scaled down", name,
        size.height, size.width, kMost);
}

}  // namespace

void ImageReader::require_inside(const ImageRegion& region) const {
  BONFIRE_CHECK(region.top >= 0 && region.left >= 0 && region.height > 0 && region.width > 0);
  BONFIRE_CHECK(region.top + region.height <= size().height && region.left + region.width <= size().width);
}

std::unique_ptr<ImageReader> open_image(std::span<const std::byte> file, const std::string& name) {
  std::unique_ptr<ImageReader> reader;
  if (begins_with(file, "\xff\xd8\xff")) {
    reader = open_jpeg(file, name);
  } else if (begins_with(file, "\x89PNG\r\n\x1a\n")) {
    reader = open_png(file, name);
  } else {
    throw_error<DataError>("[image] {}: {} bytes that are neither a JPEG nor a PNG file; remove it or save it again",
                           name, file.size());
  }
  require_reasonable(reader->size(), name);
  return reader;
}

Array decode_image(std::span<const std::byte> file, const std::string& name) {
  std::unique_ptr<ImageReader> reader = open_image(file, name);
  ImageSize size = reader->size();
  DecodedPart part = reader->start({0, 0, size.height, size.width}, size);
  Array image{DType::u8, {part.height, part.width, 3}, {}};
  image.bytes.resize(static_cast<size_t>(image.shape.count()));
  std::vector<uint8_t> row(static_cast<size_t>(part.width) * 4);
  std::byte* out = image.bytes.data();
  for (int64_t y = 0; y < part.height; ++y) {
    reader->read_row(row);
    for (size_t x = 0; x < row.size(); x += 4)
      for (size_t c = 0; c < 3; ++c) *out++ = static_cast<std::byte>(row[x + c]);
  }
  return image;
}

}  // namespace bonfire::data
