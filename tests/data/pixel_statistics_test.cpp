#include "bonfire/data/pixel_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/data/stored_images.h"

namespace bonfire::data::pixel_statistics_test {
namespace {

// Images of two pixels and two channels: the first channel is the image's number, the second always 51.
StoredImages numbered(int count) {
  std::vector<uint8_t> images;
  for (int i = 0; i < count; ++i)
    images.insert(images.end(), {static_cast<uint8_t>(i), 51, static_cast<uint8_t>(i), 51});
  return {{1, 2, 2}, images, std::vector<uint8_t>(static_cast<size_t>(count))};
}

TEST(PixelStatistics, AreOfAllImagesUpToTheStatedNumber) {
  const StoredImages images = numbered(201);
  PixelStatistics all = measure_pixels(images, 201, 1000);
  EXPECT_EQ(all.images, 201);
  EXPECT_FLOAT_EQ(all.mean[0], 100.0F / 255);
  EXPECT_FLOAT_EQ(all.deviation[0], std::sqrt((201.0F * 201 - 1) / 12) / 255);  // of the numbers 0 … 200
  EXPECT_FLOAT_EQ(all.mean[1], 0.2F);
  EXPECT_FLOAT_EQ(all.deviation[1], 1e-3F);                               // never 0
  EXPECT_FLOAT_EQ(measure_pixels(images, 11, 1000).mean[0], 5.0F / 255);  // the first 11 are trained on
}

TEST(PixelStatistics, OfTooManyImagesThoseLookedAtAreSpreadEvenly) {
  PixelStatistics some = measure_pixels(numbered(200), 200, 20);
  EXPECT_EQ(some.images, 20);
  EXPECT_FLOAT_EQ(some.mean[0], 95.0F / 255);  // 0, 10, … 190
}

}  // namespace
}  // namespace bonfire::data::pixel_statistics_test
