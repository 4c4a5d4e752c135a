#include "bonfire/data/transforms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/data/resample.h"
#include "bonfire/data/stored_images.h"
#include "tests/support/expect_error.h"
#include "tests/support/image_files.h"

namespace bonfire::data::transforms_test {
namespace {

using namespace bonfire::testing;

Sample picture_sample(int height, int width, int channels = 3) {
  std::vector<uint8_t> pixels = test_picture(height, width, channels);
  auto bytes = std::as_bytes(std::span(pixels));
  return image_sample({bytes.begin(), bytes.end()}, {height, width, channels}, 1);
}

Sample file_sample(const std::string& file) {
  auto bytes = bytes_of(file);
  return encoded_image_sample({bytes.begin(), bytes.end()}, 1, "cats/13.jpg");
}

Array applied(const Transform& transform, Sample sample, const SampleKey& key = {1, 0, 0}) {
  transform(sample, key);
  return sample.input;
}

double mean_difference(const Array& a, const Array& b) {
  EXPECT_EQ(a.shape, b.shape);
  double sum = 0;
  for (size_t i = 0; i < std::min(a.bytes.size(), b.bytes.size()); ++i)
    sum += std::abs(std::to_integer<int>(a.bytes[i]) - std::to_integer<int>(b.bytes[i]));
  return sum / static_cast<double>(a.bytes.size());
}

TEST(Transforms, AreAPureFunctionOfSeedEpochAndIndex) {
  Transform crop = random_resized_crop({.size = 16, .flip = 0.5});
  const Transform all[] = {crop, random_crop({.padding = 4, .flip = 0.5}), random_erasing({.probability = 0.9})};
  for (const Transform& transform : all) {
    std::set<std::vector<std::byte>> seen;
    for (int64_t epoch : {0, 1})
      for (int64_t index : {0, 1, 2}) {
        Array once = applied(transform, picture_sample(40, 50), {7, epoch, index});
        EXPECT_EQ(once.bytes, applied(transform, picture_sample(40, 50), {7, epoch, index}).bytes);
        seen.insert(once.bytes);
      }
    EXPECT_EQ(seen.size(), 6U);
    EXPECT_NE(applied(transform, picture_sample(40, 50), {7, 0, 0}).bytes,
              applied(transform, picture_sample(40, 50), {8, 0, 0}).bytes);
  }
}

// The parts are as large, as wide and in as many places as asked for. The picture's colours tell where a part was cut:
// red grows to the right, green downwards.
TEST(Transforms, RandomResizedCropDrawsAreaAndRatioFromTheirRanges) {
  const int kHeight = 200, kWidth = 256;
  std::vector<uint8_t> pixels;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) pixels.insert(pixels.end(), {static_cast<uint8_t>(x), static_cast<uint8_t>(y), 0});
  auto bytes = std::as_bytes(std::span(pixels));
  Sample sample = image_sample({bytes.begin(), bytes.end()}, {kHeight, kWidth, 3}, 0);
  Transform transform = random_resized_crop({.size = 32, .least_area = 0.2, .most_area = 0.5, .flip = 0.5});
  double area_sum = 0;
  int flipped = 0;
  for (int64_t i = 0; i < 400; ++i) {
    Array part = applied(transform, sample, {3, 0, i});
    auto at = [&](size_t y, size_t x, size_t c) { return std::to_integer<int>(part.bytes[(y * 32 + x) * 3 + c]); };
    double width = std::abs(at(0, 31, 0) - at(0, 0, 0)) * 32 / 31.0, height = (at(31, 0, 1) - at(0, 0, 1)) * 32 / 31.0;
    double area = width * height / (kHeight * kWidth), ratio = width / height;
    EXPECT_GT(area, 0.18);
    EXPECT_LT(area, 0.52);
    EXPECT_GT(ratio, 0.72);
    EXPECT_LT(ratio, 1.39);
    area_sum += area;
    flipped += at(0, 0, 0) > at(0, 31, 0) ? 1 : 0;
  }
  EXPECT_NEAR(area_sum / 400, 0.35, 0.015);
  EXPECT_NEAR(flipped, 200, 50);
}

TEST(Transforms, APartThatNeverFitsIsTheMiddle) {
  // 10 × 200: no part of full area has a ratio of 1, so the largest allowed in the middle is taken.
  Array part =
      applied(random_resized_crop({.size = 10, .least_area = 1, .most_area = 1, .least_ratio = 1, .most_ratio = 1}),
              picture_sample(10, 200));
  Sample whole = picture_sample(10, 200);
  for (size_t y = 0; y < 10; ++y)
    for (size_t x = 0; x < 30; ++x) ASSERT_EQ(part.bytes[y * 30 + x], whole.input.bytes[y * 600 + 95 * 3 + x]);
}

TEST(Transforms, CenterCropIsResizeAndThenTheMiddle) {
  for (auto [height, width] : {std::pair{300, 451}, std::pair{451, 300}, std::pair{64, 64}, std::pair{20, 33}}) {
    Sample sample = picture_sample(height, width);
    int shortest = std::min(height, width), tall = 64 * height / shortest, wide = 64 * width / shortest;
    Array resized = applied(resize({.size = {tall, wide}}), sample);
    Array found = applied(center_crop({.size = 56}), sample);
    ASSERT_EQ(found.shape, (Shape{56, 56, 3}));
    auto top = static_cast<size_t>(std::nearbyint((tall - 56) / 2.0));
    auto left = static_cast<size_t>(std::nearbyint((wide - 56) / 2.0));
    for (size_t y = 0; y < 56; ++y)
      for (size_t x = 0; x < 56 * 3; ++x)
        ASSERT_EQ(found.bytes[y * 56 * 3 + x], resized.bytes[((top + y) * static_cast<size_t>(wide) + left) * 3 + x]);
  }
}

TEST(Transforms, AFileGivesWhatItsPixelsGive) {
  const Transform all[] = {random_resized_crop({.size = 48, .flip = 0.5}), center_crop({.size = 48}),
                           resize({.size = {48, 31}}), random_crop({.padding = 3})};
  std::string png = png_file(test_picture(90, 120), 90, 120), jpeg = jpeg_file(test_picture(90, 120), 90, 120);
  Sample decoded = file_sample(jpeg);
  decode(decoded);
  for (const Transform& transform : all)
    for (int64_t index = 0; index < 8; ++index) {
      SampleKey key(5, 2, index);
      EXPECT_EQ(applied(transform, file_sample(png), key).bytes,
                applied(transform, picture_sample(90, 120), key).bytes);
      // Parts that are more than twice as large as the result are decoded to half their size.
      EXPECT_LT(mean_difference(applied(transform, file_sample(jpeg), key), applied(transform, decoded, key)), 2);
    }
}

TEST(Transforms, AScaledDownFileIsCloseToItsPixelsScaledDown) {
  std::string jpeg = jpeg_file(test_picture(400, 600), 400, 600, {.quality = 95});
  Sample decoded = file_sample(jpeg);
  decode(decoded);
  for (int64_t size : {160, 70, 30})
    for (int64_t index = 0; index < 3; ++index) {
      Transform transform = random_resized_crop({.size = size, .flip = 0.5});
      SampleKey key(5, 2, index);
      EXPECT_LT(mean_difference(applied(transform, file_sample(jpeg), key), applied(transform, decoded, key)), 3);
      EXPECT_LT(mean_difference(applied(center_crop({.size = size}), file_sample(jpeg), key),
                                applied(center_crop({.size = size}), decoded, key)),
                3);
    }
}

TEST(Transforms, RandomCropMovesTheImageAndFillsTheRest) {
  Array image = applied(random_crop({.padding = 2, .fill = {9, 8, 7}}), picture_sample(8, 8), {1, 0, 3});
  Sample whole = picture_sample(8, 8);
  bool found = false;
  for (int down = -2; down <= 2 && !found; ++down)
    for (int across = -2; across <= 2 && !found; ++across) {
      found = true;
      for (int64_t i = 0; i < 8 * 8 * 3; ++i) {
        int64_t y = i / 24 + down, x = i / 3 % 8 + across;
        bool inside = y >= 0 && y < 8 && x >= 0 && x < 8;
        int64_t expected = 9 - i % 3;
        if (inside) expected = std::to_integer<int>(whole.input.bytes[static_cast<size_t>((y * 8 + x) * 3 + i % 3)]);
        found = found && std::to_integer<int>(image.bytes[static_cast<size_t>(i)]) == expected;
      }
    }
  EXPECT_TRUE(found);
}

TEST(Transforms, ErasingFillsOneRectangleAsOftenAsAsked) {
  int erased = 0;
  for (int64_t i = 0; i < 300; ++i) {
    Sample plain = image_sample(std::vector<std::byte>(50 * 60 * 3, std::byte{200}), {50, 60, 3}, 0);
    Array image = applied(random_erasing({.probability = 0.4, .fill = {1, 2, 3}}), plain, {1, 0, i});
    int64_t top = 50, left = 60, bottom = -1, right = -1, count = 0;
    for (int64_t at = 0; at < 50 * 60; ++at)
      if (image.bytes[static_cast<size_t>(at * 3)] == std::byte{1}) {
        EXPECT_EQ(image.bytes[static_cast<size_t>(at * 3 + 2)], std::byte{3});
        top = std::min(top, at / 60), bottom = std::max(bottom, at / 60);
        left = std::min(left, at % 60), right = std::max(right, at % 60);
        ++count;
      }
    if (count == 0) continue;
    ++erased;
    EXPECT_EQ(count, (bottom - top + 1) * (right - left + 1));
    EXPECT_GE(count, 0.015 * 50 * 60);
    EXPECT_LE(count, 0.35 * 50 * 60);
  }
  EXPECT_NEAR(erased, 120, 35);
  Sample untouched = picture_sample(5, 5);
  EXPECT_EQ(applied(random_erasing({.probability = 0}), untouched).bytes, untouched.input.bytes);
}

// Image i is of value 20 i and of class i.
std::shared_ptr<StoredImages> plain_images(int count) {
  std::vector<uint8_t> images, labels;
  for (int i = 0; i < count; ++i) {
    images.insert(images.end(), 4, static_cast<uint8_t>(20 * i));
    labels.push_back(static_cast<uint8_t>(i));
  }
  return std::make_shared<StoredImages>(Shape{2, 2, 1}, images, labels);
}

TEST(Transforms, MixupMixesImagesAndLabelsInTheSameShares) {
  auto images = plain_images(10);
  for (double alpha : {0.2, 1.0, 4.0}) {
    Transform transform = mixup(images, {}, {.alpha = alpha, .classes = 10});
    double shares = 0, squares = 0;
    const int kCount = 500;
    for (int64_t i = 0; i < kCount; ++i) {
      Sample sample = images->get(3);
      transform(sample, {1, i, 3});
      ASSERT_EQ(sample.label.shape, Shape{10});
      std::vector<float> label(10);
      std::memcpy(label.data(), sample.label.bytes.data(), 40);
      double sum = 0, mean = 0;
      for (size_t c = 0; c < 10; ++c) {
        sum += label[c];
        mean += label[c] * 20.0 * static_cast<double>(c);
      }
      EXPECT_NEAR(sum, 1, 1e-5);
      EXPECT_NEAR(std::to_integer<int>(sample.input.bytes[0]), mean, 0.51);
      if (label[3] > 0.9999) continue;  // mixed with itself, or hardly
      shares += label[3];
      squares += label[3] * label[3];
    }
    // Beta(a, a) has the variance 1 / (4 (2 a + 1)); a tenth of the partners is the image itself, and left out above.
    if (alpha == 4.0) {
      EXPECT_NEAR(shares / 450, 0.5, 0.04);
      EXPECT_NEAR(squares / 450 - 0.25, 1 / 36.0, 0.01);
    }
  }
}

TEST(Transforms, MixupTakesPartnersAmongTheFirstSamplesOnly) {
  auto images = plain_images(10);
  Transform transform = mixup(images, {}, {.alpha = 1, .classes = 10, .samples = 4});
  for (int64_t i = 0; i < 100; ++i) {
    Sample sample = images->get(0);
    transform(sample, {1, i, 0});
    EXPECT_LE(std::to_integer<int>(sample.input.bytes[0]), 60);
  }
}

TEST(Transforms, MixupNamesALabelThatIsNoClass) {
  const auto images = plain_images(3);
  const Transform transform = mixup(images, {}, {.alpha = 1, .classes = 2, .samples = 2});
  EXPECT_ERROR(applied(transform, images->get(2), {1, 0, 2}), DataError,
               "[mixup] sample 2 has the label 2, expected 0 to 1 of 2 classes");
  Sample negative = images->get(0);
  const int64_t label = -1;
  std::memcpy(negative.label.bytes.data(), &label, sizeof label);
  EXPECT_ERROR(applied(transform, negative), DataError, "sample 0 has the label -1");
  Sample measured = images->get(0);
  measured.label = {DType::f32, {1}, std::vector<std::byte>(4)};
  EXPECT_ERROR(applied(transform, measured), DataError, "the label of a sample is f32 [1]");
}

TEST(Transforms, WhatMakesNoSenseIsAnError) {
  EXPECT_ERROR(random_resized_crop({.size = 0}), ConfigError, "size is 0, expected at least 1");
  EXPECT_ERROR(random_resized_crop({.flip = 1.5}), ConfigError, "flip is 1.5, expected from 0 to 1");
  EXPECT_ERROR(random_resized_crop({.least_area = 0.5, .most_area = 0.2}), ConfigError, "the area is from 0.5 to 0.2");
  EXPECT_ERROR(center_crop({.share = 0}), ConfigError, "share is 0");
  EXPECT_ERROR(random_crop({.padding = -1}), ConfigError, "padding is -1");
  EXPECT_ERROR(mixup(plain_images(2), {}, {.alpha = 0, .classes = 2}), ConfigError, "alpha is 0");
  Sample tokens{{DType::i64, {8}, std::vector<std::byte>(64)}, {}, {}};
  EXPECT_ERROR(applied(center_crop({}), tokens), ShapeError, "a sample is i64 [8], expected an image");
  EXPECT_ERROR(applied(center_crop({}), file_sample("no picture")), DataError, "cats/13.jpg");
}

}  // namespace
}  // namespace bonfire::data::transforms_test
