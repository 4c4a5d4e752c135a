#pragma once
// Writes record shards (docs/records.md): into a folder with another name, synced, and renamed when all is there.
//
//   data::RecordWriter writer("packed", {.class_names = set->class_names()});
//   for (int64_t i = 0; i < set->size(); ++i) writer.add(data::Split::train, set->get(i));
//   writer.finish();

#include <filesystem>
#include <memory>

#include "bonfire/data/dataset.h"
#include "bonfire/data/idx.h"

namespace bonfire::data {

struct RecordWriterOptions {
  std::vector<std::string> class_names = {};
  int64_t shard_bytes = int64_t{256} << 20;  // a shard that has so many is ended; one sample is always in it
  int64_t shard_samples = 0;                 // or so many samples; 0: however many
};

struct PackedPart {
  int64_t samples = 0, shards = 0, bytes = 0;
};

class RecordWriter {
 public:
  // ConfigError when the folder is there already or cannot be made.
  RecordWriter(std::filesystem::path folder, const RecordWriterOptions& options);
  ~RecordWriter();  // without finish() nothing is left
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Images u8 [H, W, C] or files u8 [bytes], with a class as label. DataError for what a record cannot hold.
  void add(Split split, const Sample& sample);
  void finish();
  PackedPart packed(Split split) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bonfire::data
