#pragma once
// Data that comes as a stream: a log, a socket, a generator, files that are too many to number. The user writes how one
// pass over it goes; StreamLoader makes batches of it ahead, gives each rank its share, and can go on at any count.
//
//   class Clicks : public data::IterableDataset {
//     std::unique_ptr<data::SampleStream> open(int64_t epoch) const override { return std::make_unique<…>(epoch); }
//   };
//   data::StreamLoader loader(std::make_shared<Clicks>(), {.batch_size = 256, .sampler = fleet::sampler()});
//   while (std::optional<data::Batch> batch = loader.next()) step(batch->input, batch->label);   // one epoch

#include <memory>
#include <optional>

#include "bonfire/data/loader.h"

namespace bonfire::data {

// One pass, read by one thread.
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  virtual std::optional<Sample> next() = 0;  // empty at the end

  // Leaves out samples; fewer only at the end. Reads them, unless the stream knows better.
  virtual void skip(int64_t count) {
    for (; count > 0 && next(); --count) {
    }
  }
};

class IterableDataset {
 public:
  virtual ~IterableDataset() = default;
  // A pass from its beginning. For a resumed run to see what it has not seen, and for ranks not to see the same, every
  // call with the same epoch must give the same samples in the same order.
  virtual std::unique_ptr<SampleStream> open(int64_t epoch) const = 0;
};

struct StreamOptions {
  int64_t batch_size = 64;  // of each rank
  DistributedSampler sampler = {};
  bool drop_last = false;  // leave out a last batch that is not full
  uint64_t seed = 0;
  int64_t ahead = 2;         // batches that are made before they are asked for
  Transform transform = {};  // its key has the sample's number in the whole stream
  Device device = {};
};

class StreamLoader {
 public:
  StreamLoader(std::shared_ptr<const IterableDataset> dataset, const StreamOptions& options);  // ConfigError
  ~StreamLoader();
  StreamLoader(const StreamLoader&) = delete;
  StreamLoader& operator=(const StreamLoader&) = delete;

  // This rank's part of the next batch; empty at the end of an epoch, and the call after that begins the next one. All
  // ranks get equally many batches; where share().own is 0, one has stand-ins. Throws what the stream threw; the
  // position stays.
  std::optional<Batch> next();
  Share share() const;  // of the batch that next() gave last
  LoaderPosition position() const;
  void seek(const LoaderPosition& position);
  double seconds_waited() const;  // in next(), for the stream, since the loader was made

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bonfire::data
