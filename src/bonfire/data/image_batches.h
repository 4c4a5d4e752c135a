#pragma once
// Batches of labelled images in an order that is shuffled anew each epoch.
//
//   data::ImageBatches train(data::load_mnist("data/mnist", data::Split::train), {.batch_size = 64, .shuffle = true});
//   for (const data::ImageBatch& batch : train.epoch(0)) step(batch.image, batch.label);

#include <cstdint>
#include <memory>
#include <vector>

#include "bonfire/data/idx.h"
#include "bonfire/graph/node.h"

namespace bonfire::data {

struct ImageBatch {
  Tensor image;  // u8 [N, 1, H, W]
  Tensor label;  // i64 [N]
};

struct ImageBatchesOptions {
  int64_t batch_size = 64;
  bool shuffle = false;
  bool drop_last = false;  // leave out a last batch that is not full
  int64_t limit = 0;       // use only the first so many images; 0: all
  uint64_t seed = 0;
  Device device = {};
};

class ImageBatches {
 public:
  ImageBatches(LabelledImages images, const ImageBatchesOptions& options);

  int64_t samples() const;  // that an epoch goes over
  int64_t batches_per_epoch() const;

  // The batches of an epoch, made one by one as they are asked for. The order is a pure function of (seed, epoch).
  class Epoch;
  Epoch epoch(int64_t number) const;

 private:
  struct Source;
  std::shared_ptr<const Source> source_;
};

class ImageBatches::Epoch {
 public:
  Epoch(std::shared_ptr<const Source> source, int64_t number);

  class Iterator {
   public:
    Iterator(const Epoch* epoch, int64_t batch) : epoch_(epoch), batch_(batch) {}
    ImageBatch operator*() const { return epoch_->batch(batch_); }
    Iterator& operator++() {
      ++batch_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return batch_ != other.batch_; }

   private:
    const Epoch* epoch_;
    int64_t batch_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, batches_}; }
  ImageBatch batch(int64_t number) const;

 private:
  std::shared_ptr<const Source> source_;
  std::vector<uint32_t> order_;  // of images; empty: as they are
  int64_t batches_;
};

// 0 … count − 1 in an order that is a pure function of (seed, stream): Fisher and Yates' shuffle, counter-based.
std::vector<uint32_t> shuffled(uint32_t count, uint64_t seed, uint64_t stream);

}  // namespace bonfire::data
