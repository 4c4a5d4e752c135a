#include "bonfire/data/resample.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/image_files.h"

namespace bonfire::data::resample_test {
namespace {

using bonfire::testing::test_picture;

// Pillow's resize with BILINEAR (which is torchvision's on Pillow images) as its documentation and sources define it,
// in double precision but for the rounding to 8 bits between the two passes. Along one axis:
//   support = max(scale, 1); pixel i covers [center − support, center + support), center = (i + 0.5) scale; weights are
//   1 − |distance| / support, over the pixels whose middle lies there, and add up to one.
struct Plane {
  int height, width;
  std::vector<double> values;  // [height, width]
  double& at(int y, int x) {
    return values[static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)];
  }
};

Plane pillow_columns(Plane in, double begin, double length, int count) {
  Plane out{in.height, count, std::vector<double>(static_cast<size_t>(in.height * count))};
  double scale = length / count, support = std::max(scale, 1.0);
  for (int i = 0; i < count; ++i) {
    double center = begin + (i + 0.5) * scale;
    int from = std::max(0, static_cast<int>(std::floor(center - support + 0.5)));
    int to = std::min(in.width, static_cast<int>(std::floor(center + support + 0.5)));
    double sum = 0;
    for (int x = from; x < to; ++x) sum += std::max(0.0, 1 - std::abs(x - center + 0.5) / support);
    for (int y = 0; y < in.height; ++y) {
      double value = 0;
      for (int x = from; x < to; ++x)
        value += in.at(y, x) * std::max(0.0, 1 - std::abs(x - center + 0.5) / support) / sum;
      out.at(y, i) = std::round(value);
    }
  }
  return out;
}

Plane transposed(Plane in) {
  Plane out{in.width, in.height, std::vector<double>(in.values.size())};
  for (int y = 0; y < in.height; ++y)
    for (int x = 0; x < in.width; ++x) out.at(x, y) = in.at(y, x);
  return out;
}

struct Rectangle {
  int top, left, height, width;
};

// [rectangle.height, rectangle.width, channels] cut out of [height, width, channels], then resized.
std::vector<double> pillow_crop_and_resize(const std::vector<uint8_t>& picture, int width, int channels,
                                           Rectangle rectangle, int out_height, int out_width) {
  std::vector<double> result(static_cast<size_t>(out_height * out_width * channels));
  auto position = [&](int64_t y, int64_t x, int64_t c) { return static_cast<size_t>((y * width + x) * channels + c); };
  for (int c = 0; c < channels; ++c) {
    Plane plane{rectangle.height, rectangle.width, {}};
    for (int y = 0; y < rectangle.height; ++y)
      for (int x = 0; x < rectangle.width; ++x)
        plane.values.push_back(picture[position(rectangle.top + y, rectangle.left + x, c)]);
    Plane across = pillow_columns(plane, 0, rectangle.width, out_width);
    Plane both = transposed(pillow_columns(transposed(across), 0, rectangle.height, out_height));
    for (int i = 0; i < out_height * out_width; ++i) result[position(0, i, c)] = both.values[static_cast<size_t>(i)];
  }
  return result;
}

std::vector<uint8_t> resample(const std::vector<uint8_t>& picture, int64_t width, int64_t channels,
                              ResampleOptions options) {
  options.width = width;
  std::vector<uint8_t> result(static_cast<size_t>(options.size.height * options.size.width * channels));
  Resampler resampler(options);
  for (int64_t y = options.rows.begin; y < options.rows.end; ++y) {
    std::span<uint8_t> row = resampler.row();
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < channels; ++c)
        row[static_cast<size_t>(x * 4 + c)] = picture[static_cast<size_t>((y * width + x) * channels + c)];
    resampler.take_row(result.data());
  }
  return result;
}

ResampleOptions crop_options(Rectangle r, ImageSize size, int64_t channels = 3) {
  return {.rows = {r.top, r.top + r.height},
          .columns = {r.left, r.left + r.width},
          .box = {1.0 * r.top, 1.0 * r.left, 1.0 * r.height, 1.0 * r.width},
          .size = size,
          .channels = channels};
}

TEST(Resampler, IsWithinOneOfPillowsValues) {
  const int kHeight = 61, kWidth = 83;
  for (int channels : {1, 3, 4}) {
    std::vector<uint8_t> picture = test_picture(kHeight, kWidth, channels);
    for (Rectangle r :
         {Rectangle{0, 0, 61, 83}, Rectangle{7, 11, 40, 33}, Rectangle{60, 82, 1, 1}, Rectangle{20, 3, 2, 80}})
      for (ImageSize size :
           {ImageSize{24, 24}, ImageSize{40, 33}, ImageSize{7, 90}, ImageSize{100, 5}, ImageSize{1, 1}}) {
        std::vector<double> expected = pillow_crop_and_resize(
            picture, kWidth, channels, r, static_cast<int>(size.height), static_cast<int>(size.width));
        std::vector<uint8_t> found = resample(picture, kWidth, channels, crop_options(r, size, channels));
        for (size_t i = 0; i < found.size(); ++i)
          ASSERT_LE(std::abs(found[i] - expected[i]), 1)
              << "value " << i << " of " << size.height << " × " << size.width;
      }
  }
}

TEST(Resampler, SameSizeAndPlainAreasStayAsTheyAre) {
  std::vector<uint8_t> picture = test_picture(30, 41), plain(30 * 41 * 3, 201);
  EXPECT_EQ(resample(picture, 41, 3, crop_options({0, 0, 30, 41}, {30, 41})), picture);
  for (uint8_t value : resample(plain, 41, 3, crop_options({0, 0, 30, 41}, {17, 19}))) ASSERT_EQ(value, 201);
}

TEST(Resampler, FlipIsTheMirrorImage) {
  std::vector<uint8_t> picture = test_picture(30, 41);
  ResampleOptions options = crop_options({2, 3, 25, 31}, {12, 14});
  std::vector<uint8_t> plain = resample(picture, 41, 3, options);
  options.flip = true;
  std::vector<uint8_t> flipped = resample(picture, 41, 3, options);
  for (size_t y = 0; y < 12; ++y)
    for (size_t x = 0; x < 14; ++x)
      for (size_t c = 0; c < 3; ++c) ASSERT_EQ(flipped[(y * 14 + x) * 3 + c], plain[(y * 14 + 13 - x) * 3 + c]);
}

// Resize to 40 × 60, then the middle 28 × 28 of it: neighbours outside the cut count.
TEST(Resampler, PixelsOutsideTheBoxCountWhereTheyMay) {
  std::vector<uint8_t> picture = test_picture(80, 120);
  std::vector<uint8_t> whole = resample(picture, 120, 3, crop_options({0, 0, 80, 120}, {40, 60}));
  ResampleOptions options = crop_options({0, 0, 80, 120}, {28, 28});
  options.box = {12, 32, 56, 56};  // 6 and 16 in, at twice the size
  std::vector<uint8_t> cut = resample(picture, 120, 3, options);
  for (size_t y = 0; y < 28; ++y)
    for (size_t x = 0; x < 28 * 3; ++x) ASSERT_EQ(cut[y * 28 * 3 + x], whole[(y + 6) * 60 * 3 + 16 * 3 + x]);
}

}  // namespace
}  // namespace bonfire::data::resample_test
