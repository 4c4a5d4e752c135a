#include "bonfire/train/checkpoint/checkpoint_writer.h"

#include <condition_variable>
#include <mutex>

#include "bonfire/base/error.h"
#include "bonfire/nn/weights_checksum.h"

namespace bonfire::train {

namespace fs = std::filesystem;

namespace {

// Checkpoints that are being written in this process.
std::mutex at_hand_mutex;
std::condition_variable at_hand_changed;
int at_hand = 0;

struct AtHand {
  AtHand() { add(1); }
  AtHand(const AtHand&) = delete;
  AtHand& operator=(const AtHand&) = delete;
  ~AtHand() { add(-1); }
  static void add(int count) {
    std::lock_guard lock(at_hand_mutex);
    at_hand += count;
    at_hand_changed.notify_all();
  }
};

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path folder, Options options)
    : folder_(std::move(folder)), options_(std::move(options)) {}

CheckpointWriter::~CheckpointWriter() {
  if (writing_.valid()) writing_.wait();
}

void CheckpointWriter::prepare(const CheckpointSource& source) {
  finish();
  size_t weights = nn::bytes_of(source.weights), optimizer = nn::bytes_of(source.optimizer);
  size_t average = nn::bytes_of(source.average);
  writing_ = std::async(std::launch::async, [this, weights, optimizer, average] {
    content_.weights.reserve(weights);
    content_.optimizer.reserve(optimizer);
    if (average > 0) content_.average.emplace().reserve(average);
  });
}

fs::path CheckpointWriter::save(int64_t step, const CheckpointSource& source, const fs::path& spare,
                                const WeightsFile& weights) {
  finish();
  Span span(options_.timeline, "training loop", "copy checkpoint");
  content_.weights.take(source.weights);
  content_.optimizer.take(source.optimizer);
  if (source.average.empty()) {
    content_.average.reset();
  } else {
    if (!content_.average) content_.average.emplace();
    content_.average->take(source.average);
  }
  content_.state = source.state;
  content_.metadata = source.metadata;
  span.end();
  auto mark = std::make_shared<AtHand>();
  writing_ = std::async(std::launch::async, [this, step, spare, weights, mark = std::move(mark)]() mutable {
    std::shared_ptr<AtHand> until_written = std::move(mark);
    write(step, spare, weights);
  });
  return folder_ / checkpoint_name(step);
}

void CheckpointWriter::write(int64_t step, const fs::path& spare, const WeightsFile& weights) {
  Span span(options_.timeline, "checkpoint writer", "write " + checkpoint_name(step));
  try {
    if (!weights.path.empty()) {
      nn::StateCopy& evaluated = content_.average ? *content_.average : content_.weights;
      nn::write_safetensors(weights.path, evaluated.entries(),
                            nn::with_checksum(evaluated.entries(), weights.metadata));
    }
    if (options_.ranks == nullptr) {
      save_checkpoint(folder_, step, content_, options_.keep, spare);
    } else {
      save_checkpoint_of_ranks(*options_.ranks, folder_, step, content_, options_.keep, spare);
    }
  } catch (const DataError& error) {
    throw_error<DataError>(
        "[checkpoint] {} could not be saved: {}; the checkpoints before it are as they were. Make room or choose "
        "another output, then go on with resume",
        checkpoint_name(step), error.what());
  }
}

void CheckpointWriter::check() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) writing_.get();
}

void CheckpointWriter::finish() {
  if (writing_.valid()) writing_.get();
}

void CheckpointWriter::wait_until_written() {
  std::unique_lock lock(at_hand_mutex);
  at_hand_changed.wait(lock, [] { return at_hand == 0; });
}

}  // namespace bonfire::train
