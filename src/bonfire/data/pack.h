#pragma once
// Puts a data set of images into record shards (docs/records.md).
//
//   data::PackReport report = data::pack("photos", "packed", {.shard_bytes = 64 << 20});

#include <filesystem>

#include "bonfire/data/record_writer.h"

namespace bonfire::data {

struct PackOptions {
  int64_t shard_bytes = int64_t{256} << 20;
  int64_t shards = 0;       // so many for the larger part, of equally many samples; 0: by their bytes
  int64_t resize = 0;       // pixels of the short side at most; 0: images keep their size
  bool keep_bytes = false;  // JPEG files that keep their size are stored as they are, not as tiles (jpeg_tiles.h)
};

struct PackReport {
  PackedPart train, test;
  std::string passed_over = {};  // pictures of formats that are not read, in words; empty: none
};

// DataError when the source cannot be read: nothing is left then. ConfigError when the target is there already.
PackReport pack(const std::filesystem::path& source, const std::filesystem::path& target,
                const PackOptions& options = {});

}  // namespace bonfire::data
