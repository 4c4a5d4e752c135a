#include "bonfire/data/image_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bonfire/base/error.h"

namespace bonfire::data {
namespace {

// Image i is two pixels of value i and has label i % 10.
LabelledImages numbered(size_t count) {
  LabelledImages images{{1, 2}, {}, {}};
  for (size_t i = 0; i < count; ++i) {
    images.images.insert(images.images.end(), 2, static_cast<uint8_t>(i));
    images.labels.push_back(static_cast<uint8_t>(i % 10));
  }
  return images;
}

// The images of an epoch in order, each by its number.
std::vector<int> order_of(const ImageBatches& batches, int64_t epoch) {
  std::vector<int> order;
  for (const ImageBatch& batch : batches.epoch(epoch)) {
    std::vector<uint8_t> pixels = batch.image.to_vector<uint8_t>();
    std::vector<int64_t> labels = batch.label.to_vector<int64_t>();
    for (size_t i = 0; i < labels.size(); ++i) {
      EXPECT_EQ(pixels[2 * i], pixels[2 * i + 1]);
      EXPECT_EQ(pixels[2 * i] % 10, labels[i]);
      order.push_back(pixels[2 * i]);
    }
  }
  return order;
}

std::vector<int> first_numbers(size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(ImageBatches, CutTheImagesIntoBatchesAndKeepTheRest) {
  ImageBatches batches(numbered(10), {.batch_size = 4});
  EXPECT_EQ(batches.batches_per_epoch(), 3);
  std::vector<Shape> shapes;
  for (const ImageBatch& batch : batches.epoch(0)) shapes.push_back(batch.image.shape());
  EXPECT_EQ(shapes, (std::vector<Shape>{{4, 1, 1, 2}, {4, 1, 1, 2}, {2, 1, 1, 2}}));
  EXPECT_EQ(order_of(batches, 0), first_numbers(10));
}

TEST(ImageBatches, CanLeaveTheRestOutAndUseOnlySome) {
  ImageBatches batches(numbered(100), {.batch_size = 4, .drop_last = true, .limit = 10});
  EXPECT_EQ(batches.samples(), 10);
  EXPECT_EQ(order_of(batches, 0), first_numbers(8));
}

TEST(ImageBatches, ShuffleAnewEachEpochAndTheSameForTheSameSeed) {
  ImageBatches batches(numbered(200), {.batch_size = 64, .shuffle = true, .seed = 3});
  ImageBatches again(numbered(200), {.batch_size = 16, .shuffle = true, .seed = 3});
  ImageBatches other(numbered(200), {.batch_size = 64, .shuffle = true, .seed = 4});
  std::vector<int> first = order_of(batches, 0);
  EXPECT_NE(first, order_of(batches, 1));
  EXPECT_NE(first, order_of(other, 0));
  EXPECT_EQ(first, order_of(again, 0));
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, first_numbers(200));
}

TEST(ImageBatches, OptionsThatMakeNoSenseAreErrors) {
  EXPECT_THROW(ImageBatches(numbered(1), {.batch_size = 0}), ConfigError);
  EXPECT_THROW(ImageBatches(numbered(1), {.limit = -1}), ConfigError);
}

}  // namespace
}  // namespace bonfire::data
