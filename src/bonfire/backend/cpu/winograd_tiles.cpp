#include "bonfire/backend/cpu/winograd_tiles.h"

namespace bonfire::cpu {

void pixel_offsets(const WinogradImage& image, int64_t n, int64_t top, int64_t left, int side, int64_t* offset) {
  const int64_t row_stride = image.width * image.channels;
  int64_t row = (n * image.height + top) * row_stride + left * image.channels;
  for (int i = 0; i < side; ++i, row += row_stride) {
    const bool row_inside = top + i >= 0 && top + i < image.height;
    for (int j = 0; j < side; ++j) {
      const bool inside = row_inside && left + j >= 0 && left + j < image.width;
      *offset++ = inside ? row + j * image.channels : -1;
    }
  }
}

// Positions are stored together, so their distance must not be a multiple of a page: they would share the few lines of
// the first-level cache that such addresses can lie in.
WinogradRoom::WinogradRoom(int64_t tiles, int64_t channels, int64_t width) : blocks((channels + width - 1) / width) {
  constexpr int64_t kPage = 4096 / sizeof(float), kLine = 64 / sizeof(float);  // elements
  const int64_t size = blocks * tiles * width;
  places = {
      .position_stride = (size + kPage - 1) / kPage * kPage + kLine, .block_stride = tiles * width, .width = width};
}

}  // namespace bonfire::cpu
