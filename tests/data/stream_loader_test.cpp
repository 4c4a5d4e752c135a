#include "bonfire/data/stream_loader.h"

#include <gtest/gtest.h>

#include <atomic>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"

namespace bonfire::data::stream_loader_test {
namespace {

// Epoch e is the numbers 100 e, 100 e + 1, … as images of one pixel.
class Numbers final : public IterableDataset {
 public:
  explicit Numbers(int64_t count, int64_t fails_at = -1) : count_(count), fails_at_(fails_at) {}

  std::unique_ptr<SampleStream> open(int64_t epoch) const override { return std::make_unique<Stream>(*this, epoch); }
  mutable std::atomic<int64_t> skipped{0};

 private:
  class Stream final : public SampleStream {
   public:
    Stream(const Numbers& numbers, int64_t epoch) : numbers_(numbers), epoch_(epoch) {}
    std::optional<Sample> next() override {
      if (at_ == numbers_.fails_at_) throw_error<DataError>("the line is broken at {}", at_);
      if (at_ == numbers_.count_) return {};
      int64_t number = 100 * epoch_ + at_++;
      return image_sample({static_cast<std::byte>(number)}, {1, 1, 1}, number);
    }
    void skip(int64_t count) override {
      at_ = std::min(at_ + count, numbers_.count_);
      numbers_.skipped += count;
    }

   private:
    const Numbers& numbers_;
    int64_t epoch_, at_ = 0;
  };
  int64_t count_, fails_at_;
};

std::vector<int64_t> epoch_of(StreamLoader& loader) {
  std::vector<int64_t> labels;
  while (std::optional<Batch> batch = loader.next())
    for (int64_t label : batch->label.to_vector<int64_t>()) labels.push_back(label);
  return labels;
}

TEST(StreamLoaderThread, GivesWholeBatchesInOrderEpochAfterEpoch) {
  StreamLoader loader(std::make_shared<Numbers>(8), {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(epoch_of(loader), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(loader.position(), (LoaderPosition{1, 0}));
  EXPECT_EQ(epoch_of(loader), (std::vector<int64_t>{100, 101, 102, 103, 104, 105}));
}

TEST(StreamLoaderThread, RanksShareTheStreamAndComeToEquallyManyBatches) {
  StreamOptions options{.batch_size = 2, .sampler = {.rank = 0, .world = 2}, .drop_last = true};
  StreamLoader first(std::make_shared<Numbers>(11), options);
  options.sampler.rank = 1;
  StreamLoader second(std::make_shared<Numbers>(11), options);
  EXPECT_EQ(epoch_of(first), (std::vector<int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(epoch_of(second), (std::vector<int64_t>{1, 3, 5, 7}));
}

TEST(StreamLoaderThread, WhatIsLeftAtTheEndIsSharedToo) {
  StreamLoader first(std::make_shared<Numbers>(9), {.batch_size = 2, .sampler = {.rank = 0, .world = 2}});
  StreamLoader second(std::make_shared<Numbers>(9), {.batch_size = 2, .sampler = {.rank = 1, .world = 2}});
  EXPECT_EQ(epoch_of(first), (std::vector<int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(epoch_of(second), (std::vector<int64_t>{1, 3, 5, 7, 8, 8}));  // the last two stand in
  EXPECT_EQ(first.share().weight(), 2);
  EXPECT_EQ(second.share().own, 0);
  EXPECT_EQ(second.share().weight(), 0);
  EXPECT_EQ(second.position(), (LoaderPosition{1, 0}));
}

TEST(StreamLoaderThread, GoesOnAtACountWithAnyNumberOfRanks) {
  auto numbers = std::make_shared<Numbers>(20);
  StreamOptions options{.batch_size = 2, .sampler = {.rank = 1, .world = 2}};
  StreamLoader loader(numbers, options);
  loader.next();
  loader.next();
  LoaderPosition position = loader.position();
  EXPECT_EQ(position, (LoaderPosition{0, 8}));
  std::vector<int64_t> rest = epoch_of(loader);
  StreamLoader resumed(numbers, options);
  resumed.seek(position);
  EXPECT_EQ(epoch_of(resumed), rest);
  EXPECT_EQ(numbers->skipped, 8);
  resumed.seek({2, 0});
  EXPECT_EQ(resumed.next()->label.to_vector<int64_t>(), (std::vector<int64_t>{201, 203}));
  StreamLoader alone(numbers, {.batch_size = 3});
  alone.seek(position);
  EXPECT_EQ(alone.next()->label.to_vector<int64_t>(), (std::vector<int64_t>{8, 9, 10}));
}

TEST(StreamLoaderThread, TransformsKnowTheNumberInTheWholeStream) {
  auto numbered = [](int64_t rank, int64_t world) {
    Transform transform = [](Sample& sample, const SampleKey& key) {
      sample.input.bytes[0] = static_cast<std::byte>(key.index() + 50 * key.epoch());
    };
    StreamLoader loader(std::make_shared<Numbers>(8),
                        {.batch_size = 2, .sampler = {.rank = rank, .world = world}, .transform = transform});
    loader.seek({1, 2 * world});
    return loader.next()->input.to_vector<uint8_t>();
  };
  EXPECT_EQ(numbered(0, 1), (std::vector<uint8_t>{52, 53}));
  EXPECT_EQ(numbered(1, 2), (std::vector<uint8_t>{55, 57}));
}

TEST(StreamLoaderThread, WhatTheStreamThrowsReachesTheCallerAndASeekGoesOn) {
  StreamLoader loader(std::make_shared<Numbers>(10, 5), {.batch_size = 2});
  loader.next();
  loader.next();
  EXPECT_ERROR(loader.next(), DataError, "the line is broken at 5");
  EXPECT_ERROR(loader.next(), DataError, "the line is broken at 5");
  EXPECT_EQ(loader.position(), (LoaderPosition{0, 4}));
  loader.seek({0, 0});
  EXPECT_EQ(loader.next()->label.to_vector<int64_t>(), (std::vector<int64_t>{0, 1}));
}

TEST(StreamLoaderThread, SaysWhatMakesNoSense) {
  auto numbers = std::make_shared<Numbers>(3);
  EXPECT_ERROR(StreamLoader(numbers, {.batch_size = 0}), ConfigError, "batch_size is 0");
  EXPECT_ERROR(StreamLoader(numbers, {.sampler = {.rank = 2, .world = 2}}), ConfigError, "rank 2 of a world of 2");
  EXPECT_ERROR(StreamLoader(numbers, {.sampler = {.rank = 0, .world = 2, .pad = true}}), ConfigError,
               "which a stream does not keep; leave it out");
  StreamLoader loader(numbers, {.batch_size = 2, .sampler = {.world = 2}, .drop_last = true});
  EXPECT_ERROR(loader.next(), DataError, "epoch 0 does not fill one batch of 2 for each of 2 ranks");
  EXPECT_ERROR(loader.seek({-1, 0}), ConfigError, "no sample 0 in epoch -1");
}

}  // namespace
}  // namespace bonfire::data::stream_loader_test
