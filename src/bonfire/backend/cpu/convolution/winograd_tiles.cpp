#include "bonfire/backend/cpu/convolution/winograd_tiles.h"

namespace bonfire::cpu {

// Positions of a tile are stored together; if their distance were a multiple of many lines, they would share the few
// lines of the first-level cache that such addresses can lie in.
WinogradPlaces::WinogradPlaces(int positions, int64_t group, int64_t channels, int64_t width)
    : group(group), width(width), position_stride(group * width) {
  constexpr int64_t kLine = 64 / sizeof(float);  // elements
  if (position_stride % (8 * kLine) == 0) position_stride += kLine;
  block_stride = positions * position_stride;
  group_stride = (channels + width - 1) / width * block_stride;
}

WinogradPixels WinogradImage::pixels(int64_t n, int64_t y, int64_t x, int side) const {
  auto inside = [side](int64_t position) { return static_cast<int>(std::clamp<int64_t>(position, 0, side)); };
  return {.corner = ((n * height + y) * width + x) * channels,
          .row_stride = width * channels,
          .pixel_stride = channels,
          .top = inside(-y),
          .bottom = inside(height - y),
          .left = inside(-x),
          .right = inside(width - x),
          .image_end = batch * height * width * channels};
}

template <class Element>
void WinogradSource<Element>::run(int64_t first, int64_t end, int64_t slot, float* to,
                                  const WinogradPlaces& places) const {
  for (int64_t index = first; index < end; ++index, ++slot)
    transform(data, image.pixels(grid.image(index), grid.top(index) + shift_y, grid.left(index) + shift_x, side),
              image.channels, to + places.offset(slot), places);
}

template struct WinogradSource<float>;
template struct WinogradSource<uint16_t>;

}  // namespace bonfire::cpu
