#pragma once
// DistributedSampler: which samples of an epoch a rank reads.
//
//   data::DataLoader train(images, {.batch_size = 32, .shuffle = true, .sampler = fleet::sampler()});
//   for (const auto& [image, label] : train.epoch(0)) {
//     Tensor loss = cross_entropy(model(image), label);
//     (loss * train.share().weight()).backward();   // the mean over the samples of all ranks
//
// All ranks go over an epoch in one order, which is a pure function of (seed, epoch). A global batch is its next
// world × batch_size samples, and sample i of it is read by rank i % world. The last batch of an epoch has what is
// left: no sample is counted twice and none is left out, so ranks may differ by one sample, and where fewer than
// `world` are left some have none. Those get a batch of stand-ins, copies of the global batch's first sample, with
// which they take part in the step and which weigh nothing. With `pad` every rank has as many instead, as torch's
// DistributedSampler has it: the epoch's first samples fill the last batch up, and count like all others. A position is
// counted in samples of all ranks: it means the same to any number of them.
//
// Ranks that are not equally fast can have other shares: the same global batches, cut into blocks, rank 0's first; a
// smaller last batch is cut in the same proportions.

#include <cstdint>
#include <span>

namespace bonfire::data {

// Of one global batch.
struct Share {
  int64_t own = 0, all = 0;  // samples of this rank, of all ranks
  int64_t world = 1;
  int64_t first = 0, step = 1;  // its samples are those at first, first + step, … of the global batch

  int64_t place(int64_t row) const { return first + row * step; }  // in the global batch, of this rank's sample `row`

  // What a mean over the own samples is multiplied by, so that the mean of it over the ranks is the mean over all
  // samples.
  double weight() const {
    return all == 0 ? 0 : static_cast<double>(own) * static_cast<double>(world) / static_cast<double>(all);
  }
};

struct DistributedSampler {
  int64_t rank = 0, world = 1;
  bool pad = false;  // up to a multiple of the world

  void check() const;  // ConfigError for a rank that is not in the world
  // ConfigError for shares [rank] of which there are more or fewer than ranks, for one below 1, and with pad.
  void check(std::span<const int64_t> shares) const;

  Share share(int64_t count) const;  // of a global batch of so many samples
  // Where a full one is cut into these shares [rank]; empty: all have as many.
  Share share(int64_t count, std::span<const int64_t> shares) const;
};

}  // namespace bonfire::data
