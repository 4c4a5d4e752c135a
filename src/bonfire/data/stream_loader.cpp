#include "bonfire/data/stream_loader.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/data/stacked.h"

namespace bonfire::data {

namespace {

// What the reading thread hands over: a batch, the end of an epoch, or what was thrown.
struct Piece {
  Stacked input, label;
  bool is_end = false;
  std::exception_ptr failure;
};

}  // namespace

struct StreamLoader::State {
  std::shared_ptr<const IterableDataset> dataset;
  StreamOptions options;

  std::mutex mutex;
  std::condition_variable made, wanted;
  std::deque<Piece> pieces;
  StreamPosition position;  // of the caller
  uint64_t generation = 0;  // counts seeks: what was begun before one is thrown away
  double waited = 0;        // seconds
  std::thread reader;

  void read(StreamPosition at, uint64_t own);
  Piece make(SampleStream& stream, StreamPosition& at) const;
  void begin_reader(const StreamPosition& from);
  void end_reader();
};

// A round is one sample for each rank: this rank takes its own and skips the others'. A batch is batch_size rounds, and
// it counts only when all of them are whole, so that every rank comes to the same number of batches.
Piece StreamLoader::State::make(SampleStream& stream, StreamPosition& at) const {
  Piece piece;
  try {
    std::vector<Sample> samples;
    for (int64_t row = 0; row < options.batch_size; ++row) {
      std::optional<Sample> own;
      for (int64_t rank = 0; rank < options.world; ++rank) {
        std::optional<Sample> sample = stream.next();
        if (!sample) {
          piece.is_end = true;
          return piece;
        }
        if (rank == options.rank) own = std::move(sample);
      }
      int64_t index = (at.samples + row) * options.world + options.rank;
      if (options.transform) options.transform(*own, {options.seed, at.epoch, index});
      samples.push_back(std::move(*own));
    }
    piece.input = Stacked(samples[0].input, options.batch_size);
    piece.label = Stacked(samples[0].label, options.batch_size);
    for (int64_t row = 0; row < options.batch_size; ++row) {
      const Sample& sample = samples[static_cast<size_t>(row)];
      int64_t index = (at.samples + row) * options.world + options.rank;
      piece.input.put(row, sample.input, index);
      piece.label.put(row, sample.label, index);
    }
    at.samples += options.batch_size;
  } catch (...) {
    piece.failure = std::current_exception();
  }
  return piece;
}

// The reading thread: from a position on, epoch after epoch, until a failure, a seek or the end of the loader.
void StreamLoader::State::read(StreamPosition at, uint64_t own) {
  std::unique_lock lock(mutex);
  std::unique_ptr<SampleStream> stream;
  while (true) {
    wanted.wait(lock, [&] { return own != generation || static_cast<int64_t>(pieces.size()) < options.ahead; });
    if (own != generation) return;
    lock.unlock();
    Piece piece;
    try {
      if (!stream) {
        stream = dataset->open(at.epoch);
        stream->skip(at.samples * options.world);
      }
      piece = make(*stream, at);
    } catch (...) {
      piece.failure = std::current_exception();
    }
    if (piece.is_end) {
      at = {at.epoch + 1, 0};
      stream.reset();
    }
    bool failed = piece.failure != nullptr;
    lock.lock();
    if (own != generation) return;
    pieces.push_back(std::move(piece));
    made.notify_one();
    if (failed) return;
  }
}

void StreamLoader::State::begin_reader(const StreamPosition& from) {
  position = from;
  pieces.clear();
  reader = std::thread([this, from, own = generation] { read(from, own); });
}

void StreamLoader::State::end_reader() {
  {
    std::lock_guard lock(mutex);
    ++generation;
  }
  wanted.notify_all();
  if (reader.joinable()) reader.join();
}

StreamLoader::StreamLoader(std::shared_ptr<const IterableDataset> dataset, const StreamOptions& options)
    : state_(std::make_unique<State>()) {
  if (options.batch_size < 1 || options.ahead < 1)
    throw_error<ConfigError>("[stream] batch_size is {} and ahead is {}, expected at least 1 of each",
                             options.batch_size, options.ahead);
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world)
    throw_error<ConfigError>("[stream] rank {} of a world of {}, expected from 0 to {}", options.rank, options.world,
                             options.world - 1);
  state_->dataset = std::move(dataset);
  state_->options = options;
  state_->begin_reader({});
}

StreamLoader::~StreamLoader() { state_->end_reader(); }

std::optional<Batch> StreamLoader::next() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.pieces.empty()) {
    auto start = std::chrono::steady_clock::now();
    s.made.wait(lock, [&] { return !s.pieces.empty(); });
    s.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  Piece piece = std::move(s.pieces.front());
  if (piece.failure) {  // it stays: the reader has ended, and a seek begins another
    s.pieces.front().failure = piece.failure;
    std::rethrow_exception(piece.failure);
  }
  s.pieces.pop_front();
  s.wanted.notify_one();
  if (piece.is_end) {
    bool is_empty = s.position.samples == 0;
    s.position = {s.position.epoch + 1, 0};
    if (is_empty)
      throw_error<DataError>(
          "[stream] epoch {} does not fill one batch of {} for each of {} ranks; use a smaller "
          "batch_size",
          s.position.epoch - 1, s.options.batch_size, s.options.world);
    return {};
  }
  s.position.samples += s.options.batch_size;
  lock.unlock();
  return Batch{piece.input.on(s.options.device), piece.label.on(s.options.device)};
}

StreamPosition StreamLoader::position() const {
  std::lock_guard lock(state_->mutex);
  return state_->position;
}

void StreamLoader::seek(const StreamPosition& position) {
  if (position.epoch < 0 || position.samples < 0)
    throw_error<ConfigError>("[stream] there is no sample {} in epoch {}", position.samples, position.epoch);
  state_->end_reader();
  state_->begin_reader(position);
}

double StreamLoader::seconds_waited() const {
  std::lock_guard lock(state_->mutex);
  return state_->waited;
}

}  // namespace bonfire::data
