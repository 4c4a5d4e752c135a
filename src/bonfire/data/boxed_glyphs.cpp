#include "bonfire/data/boxed_glyphs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::data {

namespace {

constexpr float kSmallest = 12, kLargest = 36;  // pixels of the longer side

// Of a stored glyph: the pixels that have ink, and the numbers of the first and last row and column of them.
struct Ink {
  int64_t left = 0, top = 0, right = 0, bottom = 0;  // the last two: one past
};

uint8_t pixel(const Array& image, int64_t y, int64_t x) {
  return std::to_integer<uint8_t>(image.bytes[static_cast<size_t>(y * image.shape[1] + x)]);
}

// Noise is weaker than that, and the middle of every stroke is stronger.
Ink ink_of(const Array& image) {
  constexpr uint8_t kInk = 90;
  Ink ink{.left = image.shape[1], .top = image.shape[0]};
  for (int64_t y = 0; y < image.shape[0]; ++y)
    for (int64_t x = 0; x < image.shape[1]; ++x) {
      if (pixel(image, y, x) < kInk) continue;
      ink = {std::min(ink.left, x), std::min(ink.top, y), std::max(ink.right, x + 1), std::max(ink.bottom, y + 1)};
    }
  BONFIRE_CHECK(ink.left < ink.right);
  return ink;
}

// Between pixels, in a straight line.
float at(const Array& image, float y, float x) {
  auto inside = [](float place, int64_t extent) { return std::clamp(place, 0.0F, static_cast<float>(extent - 1)); };
  y = inside(y, image.shape[0]), x = inside(x, image.shape[1]);
  const auto top = static_cast<int64_t>(y), left = static_cast<int64_t>(x);
  const int64_t bottom = std::min(top + 1, image.shape[0] - 1), right = std::min(left + 1, image.shape[1] - 1);
  const float down = y - static_cast<float>(top), across = x - static_cast<float>(left);
  auto row = [&](int64_t of) {
    return (1 - across) * static_cast<float>(pixel(image, of, left)) +
           across * static_cast<float>(pixel(image, of, right));
  };
  return (1 - down) * row(top) + down * row(bottom);
}

}  // namespace

Array array_of(const BoxLabel& label) {
  const float values[] = {static_cast<float>(label.label), label.box[0], label.box[1], label.box[2], label.box[3]};
  Array array{DType::f32, {5}, std::vector<std::byte>(sizeof values)};
  std::memcpy(array.bytes.data(), values, sizeof values);
  return array;
}

BoxLabel box_label_of(const Sample& sample) {
  float values[5];
  BONFIRE_CHECK(sample.label.dtype == DType::f32 && sample.label.bytes.size() == sizeof values);
  std::memcpy(values, sample.label.bytes.data(), sizeof values);
  return {static_cast<int64_t>(values[0]), {values[1], values[2], values[3], values[4]}};
}

Sample BoxedGlyphs::get(int64_t index) const {
  const Sample glyph = glyphs_.get(index);
  const Ink ink = ink_of(glyph.input);
  const uint64_t stream = 2 * static_cast<uint64_t>(index) + (options_.split == Split::test ? 1 : 0);
  uint64_t next = uint64_t{1} << 20;  // beyond the glyph's own draws
  auto draw = [&] { return uniform_at(options_.seed, stream, next++); };

  const auto width = static_cast<float>(ink.right - ink.left), height = static_cast<float>(ink.bottom - ink.top);
  const float scale = (kSmallest + (kLargest - kSmallest) * draw()) / std::max(width, height);
  auto scaled = [&](float length) { return std::max<int64_t>(2, std::lround(scale * length)); };
  const int64_t wide = scaled(width), high = scaled(height);
  auto place = [&](int64_t length) { return static_cast<int64_t>(draw() * static_cast<float>(kSide - length + 1)); };
  const int64_t left = place(wide), top = place(high);

  std::vector<std::byte> pixels(static_cast<size_t>(kSide * kSide));
  for (std::byte& value : pixels) value = static_cast<std::byte>(std::lround(60 * draw()));
  for (int64_t y = 0; y < high; ++y)
    for (int64_t x = 0; x < wide; ++x) {
      auto from = [](int64_t begin, int64_t i, float length, int64_t extent) {
        return static_cast<float>(begin) + (static_cast<float>(i) + 0.5F) * length / static_cast<float>(extent) - 0.5F;
      };
      std::byte& here = pixels[static_cast<size_t>((top + y) * kSide + left + x)];
      const float value = at(glyph.input, from(ink.top, y, height, high), from(ink.left, x, width, wide));
      here = std::max(here, static_cast<std::byte>(std::lround(value)));
    }
  auto share = [](int64_t place) { return static_cast<float>(place) / static_cast<float>(kSide); };
  return {.input = {DType::u8, {kSide, kSide, 1}, std::move(pixels)},
          .label = array_of(BoxLabel{label(index), {share(left), share(top), share(left + wide), share(top + high)}}),
          .source = {}};
}

}  // namespace bonfire::data
