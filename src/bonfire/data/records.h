#pragma once
// Data sets packed into a few large files, the shards, with an index and checksums; docs/records.md has the format and
// record_writer.h what writes it.
//
//   std::shared_ptr<data::Records> train = data::load_records("packed", data::Split::train);
//
// Shards are mapped into memory: a sample is found by its number and copied out of the system's page cache.

#include <filesystem>
#include <span>

#include "bonfire/base/file.h"
#include "bonfire/data/dataset.h"
#include "bonfire/data/idx.h"

namespace bonfire::data {

// One entry of a shard's index, as it is in the file.
struct RecordEntry {
  uint64_t offset;    // of the record's bytes in the shard
  uint32_t bytes;     // of the record
  uint32_t checksum;  // CRC-32C of the record's bytes, then of the fields below
  int64_t label;
  uint16_t height, width;  // 0: the record is a file of its own (JPEG, PNG)
  uint8_t channels;
  uint8_t zero[3];
};
static_assert(sizeof(RecordEntry) == 32);

// The index of a shard, checked: every entry is inside the bytes. DataError with `name` for what is not a shard, is cut
// short or damaged. The bytes must outlive it.
class RecordShard {
 public:
  RecordShard(std::span<const std::byte> file, std::string name);

  int64_t size() const { return count_; }
  uint32_t index_checksum() const { return index_checksum_; }
  RecordEntry entry(int64_t record) const;
  // The record's bytes, its checksum compared. DataError that names the shard, the record and `sample`.
  std::span<const std::byte> read(int64_t record, int64_t sample) const;
  const std::string& name() const { return name_; }

 private:
  std::span<const std::byte> file_;
  std::string name_;
  uint64_t index_at_ = 0;  // bytes
  int64_t count_ = 0;
  uint32_t index_checksum_ = 0;
};

class Records final : public Dataset {
 public:
  Records(const std::filesystem::path& folder, Split split);

  int64_t size() const override { return begins_.back(); }
  Sample get(int64_t index) const override;  // u8 [H, W, C], or u8 [bytes] for a file that is not decoded
  int64_t label(int64_t index) const override;
  std::vector<std::string> class_names() const override { return names_; }
  int64_t classes() const { return classes_; }  // the largest label + 1; the index has them all
  const std::vector<RecordShard>& shards() const { return shards_; }

 private:
  struct Place {
    const RecordShard& shard;
    int64_t record;
  };
  Place place_of(int64_t index) const;

  std::vector<base::MappedFile> files_;
  std::vector<RecordShard> shards_;
  std::vector<int64_t> begins_{0};  // number of each shard's first sample, and after the last
  std::vector<std::string> names_;
  int64_t classes_ = 0;
};

bool is_records(const std::filesystem::path& folder);  // whether it has a records.json

// DataError that names the file when records.json is not what it should be, or a shard is missing, of another size than
// records.json says, or damaged in its index.
std::shared_ptr<Records> load_records(const std::filesystem::path& folder, Split split);

}  // namespace bonfire::data
