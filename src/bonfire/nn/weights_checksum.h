#pragma once
// Weights that are handed out carry a checksum in the metadata of their file, under kChecksumKey: of every tensor's
// name, type, shape and values, and of the other metadata. A file that is read is checked against it, where it has one,
// so a flipped bit is an error and not another model. It does not depend on how the file is laid out.
//
//   write_safetensors("best.safetensors", entries, with_checksum(entries, {{"model", "lenet"}}));

#include <span>
#include <string>

#include "bonfire/nn/safetensors.h"

namespace bonfire::nn {

inline constexpr const char* kChecksumKey = "bonfire.crc32c";

SafetensorsMetadata with_checksum(std::span<const TensorEntry> entries, SafetensorsMetadata metadata);

// DataError where the metadata has a checksum and it is another. SafetensorsFile calls it.
void require_checksum(std::span<const TensorEntry> entries, const SafetensorsMetadata& metadata,
                      const std::string& source);

}  // namespace bonfire::nn
