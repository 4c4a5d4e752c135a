#pragma once
// The manifest of a checkpoint: what files it has, their sizes and checksums, and of tensors that several ranks have
// shared out, which slice of which one is in which file. It is written last.
//
//   {"format": 2, "step": 313, "files": {
//     "weights.safetensors": {"bytes": 1024, "crc32": 4711, "slices": {
//       "fc.weight": {"whole": [10, 512], "offset": [0, 0], "extent": [5, 512]},
//       "fc.bias": {"whole": [10], "begin": 0, "end": 5}}}, …
//
// Tensors that "slices" does not name are whole. Where all are, the format is 1, which has no "slices".

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "bonfire/graph/slice.h"

namespace bonfire::train {

struct ManifestFile {
  size_t bytes = 0;
  uint32_t crc32 = 0;
  std::map<std::string, Slice> slices = {};
};

struct Manifest {
  static constexpr int64_t kNewest = 2;  // format that this build reads

  int64_t format = 1, step = 0;
  std::map<std::string, ManifestFile> files = {};  // by name
};

std::filesystem::path manifest_file(const std::filesystem::path& checkpoint);

// DataError where it is damaged. Of a newer format no files are read.
Manifest read_manifest(const std::filesystem::path& checkpoint);
void write_manifest(const std::filesystem::path& checkpoint, const Manifest& manifest);

// What there is to be said of a file that has been written.
ManifestFile measure_file(const std::filesystem::path& file);
// "weights.safetensors has 12 bytes, expected 40"; empty: it is as described.
std::string difference(const std::filesystem::path& file, const ManifestFile& expected);

std::string files_to_json(const std::map<std::string, ManifestFile>& files);  // as between ranks
std::map<std::string, ManifestFile> files_from_json(const std::string& json);

}  // namespace bonfire::train
