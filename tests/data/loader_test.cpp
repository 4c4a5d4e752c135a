#include "bonfire/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>

#include "bonfire/base/error.h"
#include "bonfire/data/stored_images.h"

namespace bonfire::data::loader_test {
namespace {

// Image i is two pixels of value i and has label i % 10.
std::shared_ptr<StoredImages> numbered(size_t count) {
  std::vector<uint8_t> images, labels;
  for (size_t i = 0; i < count; ++i) {
    images.insert(images.end(), 2, static_cast<uint8_t>(i));
    labels.push_back(static_cast<uint8_t>(i % 10));
  }
  return std::make_shared<StoredImages>(Shape{1, 2, 1}, std::move(images), std::move(labels));
}

// Adds the images of a batch, each by its number.
void append(std::vector<int>& order, const Batch& batch) {
  std::vector<uint8_t> pixels = batch.input.to_vector<uint8_t>();
  std::vector<int64_t> labels = batch.label.to_vector<int64_t>();
  for (size_t i = 0; i < labels.size(); ++i) {
    EXPECT_EQ(pixels[2 * i], pixels[2 * i + 1]);
    EXPECT_EQ(pixels[2 * i] % 10, labels[i]);
    order.push_back(pixels[2 * i]);
  }
}

std::vector<int> order_of(DataLoader& loader, int64_t epoch) {
  std::vector<int> order;
  for (const Batch& batch : loader.epoch(epoch)) append(order, batch);
  return order;
}

std::vector<int> first_numbers(size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(DataLoader, CutsTheSamplesIntoBatchesAndKeepsTheRest) {
  DataLoader loader(numbered(10), {.batch_size = 4});
  EXPECT_EQ(loader.batches_per_epoch(), 3);
  std::vector<Shape> shapes;
  for (const Batch& batch : loader.epoch(0)) shapes.push_back(batch.input.shape());
  EXPECT_EQ(shapes, (std::vector<Shape>{{4, 1, 2, 1}, {4, 1, 2, 1}, {2, 1, 2, 1}}));
  EXPECT_EQ(order_of(loader, 0), first_numbers(10));
}

TEST(DataLoader, CanLeaveTheRestOutAndUseOnlySome) {
  DataLoader loader(numbered(100), {.batch_size = 4, .drop_last = true, .limit = 10});
  EXPECT_EQ(loader.samples(), 10);
  EXPECT_EQ(order_of(loader, 0), first_numbers(8));
}

TEST(DataLoader, ShufflesAnewEachEpochAndTheSameForTheSameSeed) {
  DataLoader loader(numbered(200), {.batch_size = 64, .shuffle = true, .seed = 3});
  DataLoader again(numbered(200), {.batch_size = 16, .shuffle = true, .seed = 3});
  DataLoader other(numbered(200), {.batch_size = 64, .shuffle = true, .seed = 4});
  std::vector<int> first = order_of(loader, 0);
  EXPECT_NE(first, order_of(loader, 1));
  EXPECT_NE(first, order_of(other, 0));
  EXPECT_EQ(first, order_of(again, 0));
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, first_numbers(200));
}

TEST(DataLoaderThreads, DeliverInOrderHoweverManyThereAre) {
  DataLoader alone(numbered(200), {.batch_size = 7, .shuffle = true, .seed = 5, .num_workers = 0});
  DataLoader team(numbered(200), {.batch_size = 7, .shuffle = true, .seed = 5, .num_workers = 4});
  for (int64_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(order_of(alone, epoch), order_of(team, epoch));
}

TEST(DataLoaderThreads, ReadOnAcrossEpochsFromWhereTheyAre) {
  DataLoader loader(numbered(10), {.batch_size = 4, .shuffle = true, .seed = 6, .num_workers = 2});
  std::vector<int> all, two_epochs = order_of(loader, 0);
  std::vector<int> second = order_of(loader, 1);
  two_epochs.insert(two_epochs.end(), second.begin(), second.end());
  EXPECT_EQ(loader.position(), (LoaderPosition{2, 0}));

  loader.seek({0, 0});
  for (int i = 0; i < 6; ++i) append(all, loader.next());
  EXPECT_EQ(all, two_epochs);
}

TEST(DataLoaderThreads, GoOnAtAPositionAsIfTheyHadNeverStopped) {
  DataLoader whole(numbered(50), {.batch_size = 8, .shuffle = true, .seed = 7, .num_workers = 3});
  std::vector<int> expected, found;
  for (int i = 0; i < 20; ++i) {
    Batch batch = whole.next();
    if (i >= 9) append(expected, batch);
  }
  DataLoader resumed(numbered(50), {.batch_size = 8, .shuffle = true, .seed = 7, .num_workers = 3});
  resumed.seek({1, 16});  // batch 9: an epoch has 7
  for (int i = 9; i < 20; ++i) append(found, resumed.next());
  EXPECT_EQ(found, expected);
}

TEST(DataLoaderThreads, TransformsHaveNumbersOfTheirSampleAndEpoch) {
  // Each pixel becomes a random one, so a run is the numbers that were drawn.
  Transform transform = [](Sample& sample, const SampleKey& key) {
    for (size_t i = 0; i < sample.input.bytes.size(); ++i)
      sample.input.bytes[i] = static_cast<std::byte>(key.uniform(i) * 256);
  };
  auto drawn = [&](int workers, int64_t epoch) {
    DataLoader loader(numbered(40), {.batch_size = 5, .seed = 8, .num_workers = workers, .transform = transform});
    std::vector<uint8_t> all;
    for (const Batch& batch : loader.epoch(epoch))
      for (uint8_t pixel : batch.input.to_vector<uint8_t>()) all.push_back(pixel);
    return all;
  };
  EXPECT_EQ(drawn(1, 0), drawn(3, 0));
  EXPECT_NE(drawn(1, 0), drawn(1, 1));
}

// Sample 13 cannot be read, sample 17 is larger than the others.
class Broken final : public Dataset {
 public:
  int64_t size() const override { return 20; }
  Sample get(int64_t index) const override {
    if (index == 13) throw_error<DataError>("[broken] cats/13.jpg: not a JPEG file");
    return image_sample(std::vector<std::byte>(index == 17 ? 9 : 4), index == 17 ? Shape{3, 3, 1} : Shape{2, 2, 1}, 0);
  }
};

TEST(DataLoaderThreads, WhatAWorkerMetReachesTheCallerAndTheNextBatchComesAllTheSame) {
  DataLoader loader(std::make_shared<Broken>(), {.batch_size = 5, .num_workers = 2});
  loader.next();
  loader.next();
  auto message = [&] {
    try {
      loader.next();
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message().find("cats/13.jpg"), std::string::npos);
  std::string mixed = message();
  EXPECT_NE(mixed.find("sample 17 is u8 [3, 3, 1]"), std::string::npos) << mixed;
  EXPECT_EQ(loader.next().input.size(0), 5);
}

TEST(DataLoaderThreads, TellWhichBatchesTheyMadeAndWhen) {
  for (int workers : {0, 1, 3}) {
    std::mutex mutex;
    std::map<int64_t, int> made;  // by the batch's number
    {
      DataLoader loader(numbered(20),
                        {.batch_size = 4, .num_workers = workers, .on_batch = [&](const MadeBatch& batch) {
                           std::lock_guard lock(mutex);
                           ++made[batch.which.epoch * 5 + batch.which.samples / 4];
                           EXPECT_LT(batch.worker, std::max(workers, 1));
                           EXPECT_GE(batch.seconds, 0);
                         }});
      for (int i = 0; i < 7; ++i) loader.next();
    }
    for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(made[i], 1) << i;
  }
}

TEST(DataLoader, OptionsThatMakeNoSenseAreErrors) {
  EXPECT_THROW(DataLoader(numbered(1), {.batch_size = 0}), ConfigError);
  EXPECT_THROW(DataLoader(numbered(1), {.limit = -1}), ConfigError);
  EXPECT_THROW(DataLoader(numbered(1), {.num_workers = -1}), ConfigError);
  EXPECT_THROW(DataLoader(numbered(1), {.num_workers = 1'000'000'000}), ConfigError);
  EXPECT_THROW(DataLoader(numbered(3), {.batch_size = 4, .drop_last = true}), ConfigError);
  EXPECT_THROW(DataLoader(numbered(0), {}), DataError);
  DataLoader loader(numbered(3), {.batch_size = 2});
  EXPECT_THROW(loader.seek({0, 4}), ConfigError);
  EXPECT_THROW(DataLoader(numbered(3), {.sampler = {.rank = 2, .world = 2}}), ConfigError);
}

}  // namespace
}  // namespace bonfire::data::loader_test
