#pragma once
// CheckpointWriter: checkpoints while training goes on. save() copies the values into memory of its own, which is how
// long training pauses, and leaves writing, syncing and renaming to a thread.
//
//   train::CheckpointWriter writer(folder / "checkpoints", {.keep = 3});
//   writer.save(step, {.weights = model.state_dict(), .optimizer = state, .state = json});
//   ...                // steps; now and then:
//   writer.check();    // throws what went wrong meanwhile: a full disk, a folder that is gone
//   writer.finish();   // waits until the last one is on the disk

#include <filesystem>
#include <future>

#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/report/timeline.h"

namespace bonfire::train {

struct CheckpointSource {
  nn::StateDict weights, optimizer;
  nn::StateDict average = {};             // empty: there is none
  std::string state = {};                 // JSON
  nn::SafetensorsMetadata metadata = {};  // of the weights
};

// A safetensors file besides the checkpoint with the weights that are evaluated: the average where there is one.
struct WeightsFile {
  std::filesystem::path path = {};  // empty: none
  nn::SafetensorsMetadata metadata = {};
};

class CheckpointWriter {
 public:
  struct Options {
    int64_t keep = 3;              // newest checkpoints
    Timeline* timeline = nullptr;  // where copies and writes are noted
    // Of ranks that hold slices: each has a writer, and they write each checkpoint together. Nobody else uses it.
    std::shared_ptr<comm::Group> ranks = nullptr;
  };
  CheckpointWriter(std::filesystem::path folder, Options options);
  ~CheckpointWriter();  // waits; an error that nobody has asked for is lost

  // Gets memory for such checkpoints ready meanwhile, so that the first one is copied as fast as the others.
  void prepare(const CheckpointSource& source);

  // Returns where the checkpoint will be. Waits for the one before, whose error it throws. `spare` is not removed.
  // The weights file is written first: a run that dies in between writes it again after it is resumed.
  std::filesystem::path save(int64_t step, const CheckpointSource& source, const std::filesystem::path& spare = {},
                             const WeightsFile& weights = {});
  void check();   // without waiting
  void finish();  // both throw DataError, once

  static void wait_until_written();  // until no writer of this process has a checkpoint at hand; any thread may call it

 private:
  void write(int64_t step, const std::filesystem::path& spare, const WeightsFile& weights);

  std::filesystem::path folder_;
  Options options_;
  CheckpointContent content_;  // the thread's while it writes; its memory is used again
  std::future<void> writing_;
};

}  // namespace bonfire::train
