#include "bonfire/nn/weights_checksum.h"

#include <fmt/format.h>

#include <map>

#include "bonfire/base/checksum.h"
#include "bonfire/base/error.h"

namespace bonfire::nn {

namespace {

std::string checksum(std::span<const TensorEntry> entries, const SafetensorsMetadata& metadata) {
  std::map<std::string, std::string> parts;  // by name: the order of entries does not count
  for (const TensorEntry& entry : entries)
    parts[entry.name] =
        fmt::format("{} {} {:08x}", name_of(entry.dtype), to_string(entry.shape), base::crc32c(entry.bytes));
  uint32_t sum = 0;
  auto add = [&sum](const std::string& text) {
    const uint64_t size = text.size();  // so that no two lists of texts look alike
    sum = base::crc32c(std::as_bytes(std::span(&size, 1)), sum);
    sum = base::crc32c(std::as_bytes(std::span(text)), sum);
  };
  for (const auto& [name, part] : parts) {
    add(name);
    add(part);
  }
  for (const auto& [key, text] : metadata) {
    if (key == kChecksumKey) continue;
    add(key);
    add(text);
  }
  return fmt::format("{:08x}", sum);
}

}  // namespace

SafetensorsMetadata with_checksum(std::span<const TensorEntry> entries, SafetensorsMetadata metadata) {
  metadata[kChecksumKey] = checksum(entries, metadata);
  return metadata;
}

void require_checksum(std::span<const TensorEntry> entries, const SafetensorsMetadata& metadata,
                      const std::string& source) {
  auto said = metadata.find(kChecksumKey);
  if (said == metadata.end()) return;
  if (std::string found = checksum(entries, metadata); found != said->second)
    throw_error<DataError>(
        "[safetensors] {}: the checksum of what it holds is {}, expected {}: the file is damaged, take another copy "
        "(or "
        "another program has changed it and kept '{}' in its metadata: remove that)",
        source, found, said->second, kChecksumKey);
}

}  // namespace bonfire::nn
