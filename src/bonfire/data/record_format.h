#pragma once
// What the reader and the writer of record shards must agree on; docs/records.md has it in words.

#include <cstdint>

#include "bonfire/base/checksum.h"
#include "bonfire/data/records.h"

namespace bonfire::data {

constexpr const char* kRecordsManifest = "records.json";
constexpr const char* kRecordsFormat = "bonfire records";
constexpr int kRecordsVersion = 1;

struct ShardHeader {
  char magic[8];
  uint32_t number, zero;
};
struct ShardFooter {
  uint64_t index_at, count;           // bytes; entries
  uint32_t index_checksum, checksum;  // of the index; of what is in front of it
  char magic[8];
};
static_assert(sizeof(ShardHeader) == 16 && sizeof(ShardFooter) == 32);
constexpr size_t kFooterChecked = 20;  // bytes of the footer that its checksum is of

constexpr char kShardMagic[] = "BONFREC1", kEndMagic[] = "BONFEND1";

inline uint32_t record_checksum(std::span<const std::byte> record, const RecordEntry& entry) {
  return base::crc32c(std::as_bytes(std::span(&entry, 1)).subspan(offsetof(RecordEntry, label)), base::crc32c(record));
}

inline const char* name_of(Split split) { return split == Split::train ? "train" : "test"; }

}  // namespace bonfire::data
