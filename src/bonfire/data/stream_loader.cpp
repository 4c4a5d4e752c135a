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
  Share share;
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
  LoaderPosition position;  // of the caller
  Share last;               // of the batch that the caller got last
  uint64_t generation = 0;  // counts seeks: what was begun before one is thrown away
  double waited = 0;        // seconds
  std::thread reader;

  int64_t global_batch() const { return options.batch_size * options.sampler.world; }
  void read(LoaderPosition at, uint64_t own);
  Piece make(SampleStream& stream, LoaderPosition& at) const;
  void begin_reader(const LoaderPosition& from);
  void end_reader();
};

// Every rank reads the samples of all, so all of them see the same end.
Piece StreamLoader::State::make(SampleStream& stream, LoaderPosition& at) const {
  Piece piece;
  try {
    std::vector<Sample> samples;  // this rank's
    std::optional<Sample> first;
    int64_t count = 0;
    for (; count < global_batch(); ++count) {
      std::optional<Sample> sample = stream.next();
      if (!sample) break;
      if (count % options.sampler.world == options.sampler.rank)
        samples.push_back(std::move(*sample));
      else if (count == 0)
        first = std::move(sample);
    }
    piece.is_end = count == 0 || (options.drop_last && count < global_batch());
    if (piece.is_end) return piece;
    piece.share = options.sampler.share(count);
    if (samples.empty()) samples.assign(static_cast<size_t>(options.batch_size), *first);
    auto rows = static_cast<int64_t>(samples.size());
    for (int64_t row = 0; row < rows; ++row) {
      Sample& sample = samples[static_cast<size_t>(row)];
      int64_t index = at.samples + (piece.share.own > 0 ? piece.share.place(row) : 0);
      if (options.transform) options.transform(sample, {options.seed, at.epoch, index});
      if (row == 0) {
        piece.input = Stacked(sample.input, rows);
        piece.label = Stacked(sample.label, rows);
      }
      piece.input.put(row, sample.input, index);
      piece.label.put(row, sample.label, index);
    }
    at.samples += count;
  } catch (...) {
    piece.failure = std::current_exception();
  }
  return piece;
}

// The reading thread: from a position on, epoch after epoch, until a failure, a seek or the end of the loader.
void StreamLoader::State::read(LoaderPosition at, uint64_t own) {
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
        stream->skip(at.samples);
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

void StreamLoader::State::begin_reader(const LoaderPosition& from) {
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
  options.sampler.check();
  if (options.sampler.pad)
    throw_error<ConfigError>(
        "[stream] the sampler's pad takes the first samples again, which a stream does not keep; leave it out: ranks "
        "weigh their samples by share().weight()");
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
          "batch_size, or keep the last batch",
          s.position.epoch - 1, s.options.batch_size, s.options.sampler.world);
    return {};
  }
  s.position.samples += piece.share.all;
  s.last = piece.share;
  lock.unlock();
  return Batch{piece.input.on(s.options.device), piece.label.on(s.options.device)};
}

Share StreamLoader::share() const { return state_->last; }

LoaderPosition StreamLoader::position() const {
  std::lock_guard lock(state_->mutex);
  return state_->position;
}

void StreamLoader::seek(const LoaderPosition& position) {
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
