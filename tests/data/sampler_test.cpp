#include "bonfire/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "bonfire/data/loader.h"
#include "bonfire/data/stored_images.h"
#include "tests/support/expect_error.h"

namespace bonfire::data::sampler_test {
namespace {

// Image i is one pixel of value i.
std::shared_ptr<StoredImages> numbered(size_t count) {
  std::vector<uint8_t> images, labels(count);
  for (size_t i = 0; i < count; ++i) images.push_back(static_cast<uint8_t>(i));
  return std::make_shared<StoredImages>(Shape{1, 1, 1}, std::move(images), std::move(labels));
}

LoaderOptions shuffled_batches(int64_t batch_size, int64_t rank, int64_t world) {
  return {.batch_size = batch_size, .sampler = {.rank = rank, .world = world}, .shuffle = true, .seed = 3};
}

// The numbers of this rank's samples in the next batch; none where they are stand-ins.
std::vector<int> next_of(DataLoader& loader) {
  std::vector<uint8_t> pixels = loader.next().input.to_vector<uint8_t>();
  if (loader.share().own == 0) return {};
  EXPECT_EQ(static_cast<int64_t>(pixels.size()), loader.share().own);
  return {pixels.begin(), pixels.end()};
}

// What all ranks together read from a position to the end of its epoch, in the order of one process.
std::vector<int> read_by(int64_t world, size_t samples, int64_t batch_size, LoaderPosition from) {
  std::vector<std::vector<std::vector<int>>> shares;  // [rank, batch, row]
  for (int64_t rank = 0; rank < world; ++rank) {
    DataLoader loader(numbered(samples), shuffled_batches(batch_size, rank, world));
    loader.seek(from);
    std::vector<std::vector<int>>& own = shares.emplace_back();
    while (loader.position().epoch == from.epoch) own.push_back(next_of(loader));
    EXPECT_EQ(own.size(), shares[0].size());
  }
  std::vector<int> all;
  for (size_t batch = 0; batch < shares[0].size(); ++batch)
    for (size_t row = 0; row < shares[0][batch].size(); ++row)
      for (const auto& own : shares)
        if (row < own[batch].size()) all.push_back(own[batch][row]);
  return all;
}

TEST(DistributedSampler, RanksTogetherReadWhatOneReadsInItsOrder) {
  for (size_t samples : {1, 7, 48, 50, 95, 96, 97})
    for (int64_t epoch : {0, 2}) {
      std::vector<int> expected = read_by(1, samples, 48, {epoch, 0});
      for (int64_t world : {2, 3, 4}) EXPECT_EQ(read_by(world, samples, 48 / world, {epoch, 0}), expected) << world;
      std::sort(expected.begin(), expected.end());
      for (size_t i = 0; i < samples; ++i) EXPECT_EQ(expected[i], static_cast<int>(i));
    }
}

TEST(DistributedSampler, APositionIsTheSameToAnyNumberOfRanks) {
  std::vector<int> whole = read_by(1, 100, 16, {1, 0});
  for (int64_t done : {0, 16, 37, 99, 100}) {
    std::vector<int> left(whole.begin() + done, whole.end());
    for (int64_t world : {1, 2, 3, 5}) EXPECT_EQ(read_by(world, 100, 8, {1, done}), left) << world << " from " << done;
  }
}

TEST(DistributedSampler, WeightsMakeTheMeanOverRanksTheMeanOverSamples) {
  for (int64_t count : {1, 2, 5, 8})
    for (int64_t world : {1, 2, 4}) {
      double own = 0, weights = 0;
      for (int64_t rank = 0; rank < world; ++rank) {
        Share share = DistributedSampler{rank, world}.share(count);
        own += static_cast<double>(share.own);
        weights += share.weight() / static_cast<double>(world);
      }
      EXPECT_EQ(own, static_cast<double>(count));
      EXPECT_DOUBLE_EQ(weights, 1);
    }
}

TEST(DistributedSampler, BatchesAreCountedToTheEndFromAnywhere) {
  DataLoader loader(numbered(100), shuffled_batches(8, 0, 2));  // 7 batches, the last of 4 samples
  EXPECT_EQ(loader.batches_until(3), 21);
  loader.seek({1, 40});
  EXPECT_EQ(loader.batches_until(3), 4 + 7);
  EXPECT_EQ(loader.batches_until(1), 0);
  loader.seek({1, 100});
  EXPECT_EQ(loader.position(), (LoaderPosition{2, 0}));
}

TEST(DistributedSampler, RanksLeaveOutTheSameLastBatch) {
  for (int64_t rank : {0, 1}) {
    LoaderOptions options = shuffled_batches(8, rank, 2);
    options.drop_last = true;
    DataLoader loader(numbered(100), options);
    EXPECT_EQ(loader.batches_per_epoch(), 6);
    loader.seek({0, 90});  // what is left fills no batch
    EXPECT_EQ(loader.position(), (LoaderPosition{1, 0}));
  }
  LoaderOptions options = shuffled_batches(60, 0, 2);
  options.drop_last = true;
  EXPECT_ERROR(DataLoader(numbered(100), options), ConfigError,
               "100 samples do not fill one batch of 60 for each of 2");
}

// Every rank as many; what fills the last batch up are the epoch's first samples, and nothing weighs more or less.
TEST(DistributedSampler, APaddedTailGivesEveryRankAsManySamples) {
  for (size_t samples : {1, 2, 7, 50, 95, 96, 97})
    for (int64_t world : {2, 3, 4}) {
      DataLoader one(numbered(samples), shuffled_batches(48, 0, 1));
      std::vector<int> order;
      while (one.position().epoch == 0)
        for (int number : next_of(one)) order.push_back(number);
      const size_t padded =
          (samples + static_cast<size_t>(world) - 1) / static_cast<size_t>(world) * static_cast<size_t>(world);
      for (size_t i = 0; order.size() < padded; ++i) order.push_back(order[i]);
      std::vector<size_t> counts(static_cast<size_t>(world));
      for (int64_t rank = 0; rank < world; ++rank) {
        LoaderOptions options = shuffled_batches(48 / world, rank, world);
        options.sampler.pad = true;
        DataLoader loader(numbered(samples), options);
        size_t batch = 0;  // where it begins in the order
        while (loader.position().epoch == 0) {
          std::vector<int> own = next_of(loader);
          EXPECT_EQ(loader.share().weight(), 1);
          for (size_t row = 0; row < own.size(); ++row)
            EXPECT_EQ(own[row], order.at(batch + row * static_cast<size_t>(world) + static_cast<size_t>(rank)));
          counts[static_cast<size_t>(rank)] += own.size();
          batch += own.size() * static_cast<size_t>(world);
        }
        EXPECT_EQ(counts[static_cast<size_t>(rank)], padded / static_cast<size_t>(world));
        EXPECT_EQ(loader.position(), (LoaderPosition{1, 0}));
      }
    }
}

// What three ranks read from the beginning, while their shares change; one vector for each batch, in the order of the
// batch. Each has another number of workers, which have made batches ahead when that happens.
std::vector<std::vector<int>> read_with_shares(size_t samples, const std::map<size_t, std::vector<int64_t>>& changes,
                                               size_t batches) {
  std::vector<std::vector<int>> all(batches);
  for (int64_t rank = 0; rank < 3; ++rank) {
    LoaderOptions options = shuffled_batches(8, rank, 3);
    options.num_workers = static_cast<int>(rank);
    DataLoader loader(numbered(samples), options);
    for (size_t batch = 0; batch < batches; ++batch) {
      if (auto change = changes.find(batch); change != changes.end()) loader.set_shares(change->second);
      std::vector<int> own = next_of(loader);
      const Share share = loader.share();
      EXPECT_EQ(share.own, static_cast<int64_t>(own.size()));
      all[batch].resize(static_cast<size_t>(share.all), -1);
      for (size_t row = 0; row < own.size(); ++row) {
        int& number = all[batch].at(static_cast<size_t>(share.place(static_cast<int64_t>(row))));
        EXPECT_EQ(number, -1) << "two ranks have it";
        number = own[row];
      }
    }
  }
  return all;
}

// Epochs of 5 batches, the last of 4 samples, of which a share of 1 in 24 has none.
TEST(DistributedSampler, WhateverTheSharesAreEachBatchIsThatOfOne) {
  DataLoader one(numbered(100), shuffled_batches(24, 0, 1));
  std::vector<std::vector<int>> expected;
  for (int batch = 0; batch < 15; ++batch) expected.push_back(next_of(one));
  EXPECT_EQ(read_with_shares(100, {}, 15), expected);
  EXPECT_EQ(read_with_shares(100, {{0, {8, 8, 8}}}, 15), expected);
  EXPECT_EQ(read_with_shares(100, {{3, {12, 11, 1}}, {4, {1, 1, 22}}, {5, {4, 10, 10}}, {12, {22, 1, 1}}}, 15),
            expected);
}

TEST(DistributedSampler, APositionIsTheSameWithOtherShares) {
  DataLoader equal(numbered(100), shuffled_batches(8, 1, 2)), other(numbered(100), shuffled_batches(8, 1, 2));
  for (int batch = 0; batch < 9; ++batch) {
    if (batch == 2 || batch == 5) other.set_shares({15 - batch, 1 + batch});
    equal.next();
    other.next();
    EXPECT_EQ(other.position(), equal.position());
    EXPECT_EQ(other.batches_until(4), equal.batches_until(4));
  }
  other.seek({0, 96});
  EXPECT_EQ(next_of(other).size(), 2U);  // of the last 4: 6 in 16
}

TEST(DistributedSampler, SharesOfALastBatchAddUpAndWeigh) {
  for (int64_t count : {1, 2, 5, 23, 24}) {
    int64_t own = 0;
    double weights = 0;
    for (int64_t rank = 0; rank < 3; ++rank) {
      Share share = DistributedSampler{.rank = rank, .world = 3}.share(count, std::vector<int64_t>{17, 6, 1});
      EXPECT_EQ(share.first, own);
      own += share.own;
      weights += share.weight() / 3;
    }
    EXPECT_EQ(own, count);
    EXPECT_DOUBLE_EQ(weights, 1);
  }
}

TEST(DistributedSampler, SharesThatCannotBeAreRefused) {
  DataLoader loader(numbered(100), shuffled_batches(8, 0, 2));
  EXPECT_ERROR(loader.set_shares({16}), ConfigError, "1 shares for 2 ranks, expected one for each");
  EXPECT_ERROR(loader.set_shares({16, 0}), ConfigError, "the share of rank 1 is 0, expected at least 1 sample");
  EXPECT_ERROR(loader.set_shares({8, 9}), ConfigError, "add up to 17, expected 16: 8 for each rank");
  LoaderOptions padded = shuffled_batches(8, 0, 2);
  padded.sampler.pad = true;
  EXPECT_ERROR(DataLoader(numbered(100), padded).set_shares({9, 7}), ConfigError, "leave pad out");
  EXPECT_EQ(next_of(loader).size(), 8U);
}

}  // namespace
}  // namespace bonfire::data::sampler_test
