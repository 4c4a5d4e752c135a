#pragma once
// DataLoader: batches of a data set, made ahead by worker threads and delivered in order, epoch after epoch.
//
//   data::DataLoader train(data::load_mnist("data/mnist", data::Split::train), {.batch_size = 64, .shuffle = true});
//   for (const auto& [image, label] : train.epoch(0)) step(image, label);
//
// The order of an epoch is a pure function of (seed, epoch), so a position is all that a checkpoint must hold. Workers
// read on into the next epoch while the last batches of this one are used. With a sampler each rank reads its own part
// of every batch (data/sampler.h).

#include <functional>
#include <memory>
#include <span>

#include "bonfire/data/dataset.h"
#include "bonfire/data/sampler.h"
#include "bonfire/graph/node.h"

namespace bonfire::data {

struct Batch {
  Tensor input;  // [N] + a sample's input: images are u8 [N, H, W, C]
  Tensor label;  // [N] + a sample's label: classes are i64 [N]
};

// Where a loader is: how many samples of the epoch all ranks together have used.
struct LoaderPosition {
  int64_t epoch = 0, samples = 0;
  friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

// What a worker did, for timelines.
struct MadeBatch {
  int worker = 0;         // counted from 0
  LoaderPosition which;   // where the batch begins
  double begin, seconds;  // begin: on the steady clock
};

struct LoaderOptions {
  int64_t batch_size = 64;  // of each rank
  DistributedSampler sampler = {};
  bool shuffle = false;
  bool drop_last = false;  // leave out a last batch that is not full
  int64_t limit = 0;       // use only the first so many samples; 0: all
  uint64_t seed = 0;
  int num_workers = 1;  // threads; 0: batches are made when they are asked for
  Transform transform = {};
  Device device = {};
  std::function<void(const MadeBatch&)> on_batch = {};  // called by the thread that made it
};

class DataLoader {
 public:
  // ConfigError for options that make no sense, DataError for an empty data set.
  DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  int64_t samples() const;  // that an epoch goes over, of all ranks
  int64_t batches_per_epoch() const;
  int64_t batches_until(int64_t epoch) const;  // from the position to that epoch's beginning

  // This rank's part of the batch at the position; never ends. Throws what a worker met, and goes on after it. Where
  // share().own is 0, the batch has stand-ins.
  Batch next();
  Share share() const;                        // of the batch that next() gave last
  std::span<const uint32_t> numbers() const;  // of this rank's samples in it, in the data set; stand-ins have none
  // From the next batch on the ranks have so many samples of each: all of them must call it at the same batch. What
  // workers have made ahead is made anew. ConfigError where they do not add up to world × batch_size.
  void set_shares(const std::vector<int64_t>& shares);
  LoaderPosition position() const;
  void seek(const LoaderPosition& position);
  double seconds_waited() const;  // in next(), for a batch to be made, since the loader was made

  // The batches of one epoch, from its beginning. Workers start anew only if they are elsewhere.
  class Epoch;
  Epoch epoch(int64_t number);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class DataLoader::Epoch {
 public:
  Epoch(DataLoader& loader, int64_t batches) : loader_(loader), batches_(batches) {}

  class Iterator {
   public:
    Iterator(DataLoader* loader, int64_t left) : loader_(loader), left_(left) {}
    Batch operator*() const { return loader_->next(); }  // once for each ++
    Iterator& operator++() {
      --left_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return left_ != other.left_; }

   private:
    DataLoader* loader_;
    int64_t left_;
  };
  Iterator begin() const { return {&loader_, batches_}; }
  Iterator end() const { return {&loader_, 0}; }

 private:
  DataLoader& loader_;
  int64_t batches_;
};

// 0 … count − 1 in an order that is a pure function of (seed, stream): Fisher and Yates' shuffle, counter-based.
std::vector<uint32_t> shuffled(uint32_t count, uint64_t seed, uint64_t stream);

}  // namespace bonfire::data
