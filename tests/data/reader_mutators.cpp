#include "tests/data/reader_mutators.h"

#include <zlib.h>

#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/data/cifar.h"
#include "bonfire/data/idx.h"
#include "bonfire/data/record_format.h"
#include "bonfire/data/records.h"
#include "tests/support/fuzz_loop.h"

namespace bonfire::data::testing {

namespace {

using bonfire::testing::ByteMutator;

// Whether `read` takes the bytes, which have no spare room after them that would hide a read beyond the end.
template <class Read>
bool takes(const std::string& file, const Read& read) {
  std::vector<char> exact(file.begin(), file.end());
  try {
    read(std::as_bytes(std::span<const char>(exact)));
    return true;
  } catch (const DataError& error) {
    BONFIRE_CHECK(std::strlen(error.what()) < 1000, "a message of {} characters", std::strlen(error.what()));
    return false;
  }
}

std::string gzip(const std::string& plain) {
  std::string packed(plain.size() + 128, '\0');
  z_stream stream{};
  BONFIRE_CHECK(deflateInit2(&stream, 1, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  BONFIRE_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

template <class Struct>
void put(std::string& file, size_t at, const Struct& value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}

uint32_t checksum(const std::string& file, size_t at, size_t bytes) {
  return base::crc32c(std::as_bytes(std::span(file)).subspan(at, bytes));
}

// A shard with checksums that fit, whatever its entries say.
std::string shard_of(const std::string& records, const std::vector<RecordEntry>& entries) {
  std::string file = std::string(kShardMagic) + std::string(8, '\0') + records;
  ShardFooter footer{file.size(), entries.size(), 0, 0, {}};
  file.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(RecordEntry));
  footer.index_checksum = checksum(file, footer.index_at, file.size() - footer.index_at);
  file.append(reinterpret_cast<const char*>(&footer), sizeof footer);
  size_t at = file.size() - sizeof footer;
  footer.checksum = checksum(file, at, kFooterChecked);
  std::memcpy(footer.magic, kEndMagic, 8);
  put(file, at, footer);
  return file;
}

void change_entry(RecordEntry& entry, ByteMutator& mutator) {
  std::string bytes(reinterpret_cast<const char*>(&entry), sizeof entry);
  for (size_t i = 0; i <= mutator.below(3); ++i)
    bytes[mutator.below(bytes.size())] = static_cast<char>(mutator.below(256));
  std::memcpy(&entry, bytes.data(), sizeof entry);
}

}  // namespace

bool takes_idx(uint64_t seed, uint64_t number) {
  ByteMutator mutator(seed, number);
  std::string file = mutator.below(2) == 0 ? std::string("\0\0\x08\x01\0\0\0\x09", 8) + "labels..."
                                           : std::string("\0\0\x08\x03\0\0\0\2\0\0\0\2\0\0\0\3", 16) + "twelve bytes";
  bool packed = mutator.below(2) == 0;
  if (mutator.below(8) != 0) mutator.change(file);  // some are whole
  if (packed) {
    file = gzip(file);
    if (mutator.below(2) == 0) mutator.change(file);
    if (mutator.below(8) == 0) file += file;  // two members
  }
  return takes(file, [](std::span<const std::byte> bytes) {
    IdxArray array = parse_idx(bytes, "fuzz");
    BONFIRE_CHECK(array.data.size() == static_cast<size_t>(array.shape.count()));
  });
}

bool takes_cifar(uint64_t seed, uint64_t number) {
  ByteMutator mutator(seed, number);
  int classes = mutator.below(2) == 0 ? 10 : 100;
  size_t record = 3072 + (classes == 100 ? 2 : 1), count = mutator.below(4);
  std::string file(record * count, '\3');
  for (size_t changes = mutator.below(4); changes > 0 && !file.empty(); --changes) {
    if (mutator.below(4) == 0)
      mutator.change(file);
    else
      file[mutator.below(file.size() / record + 1) * record % file.size()] = static_cast<char>(mutator.below(256));
  }
  return takes(file, [classes](std::span<const std::byte> bytes) {
    std::vector<uint8_t> images, labels;
    parse_cifar(bytes, "fuzz", classes, images, labels);
    BONFIRE_CHECK(images.size() == 3072 * labels.size());
    for (uint8_t label : labels) BONFIRE_CHECK(label < classes);
  });
}

bool takes_records(uint64_t seed, uint64_t number) {
  ByteMutator mutator(seed, number);
  std::string records = "a file of its own;2x3x2 pixels.";
  std::vector<RecordEntry> entries{{16, 18, 0, 4, 0, 0, 0, {}}, {34, 12, 0, 7, 2, 3, 2, {}}};
  for (RecordEntry& entry : entries)
    entry.checksum = record_checksum(std::as_bytes(std::span(records)).subspan(entry.offset - 16, entry.bytes), entry);
  if (mutator.below(4) == 0) records[mutator.below(records.size())] = static_cast<char>(mutator.below(256));
  if (mutator.below(2) == 0) change_entry(entries[mutator.below(2)], mutator);
  std::string file = shard_of(records, entries);
  if (mutator.below(2) == 0) mutator.change(file);
  if (mutator.below(4) == 0 && file.size() >= sizeof(ShardFooter)) {  // a footer that lies and says so rightly
    size_t at = file.size() - sizeof(ShardFooter);
    file[at + mutator.below(kFooterChecked)] = static_cast<char>(mutator.below(256));
    put(file, at + kFooterChecked, checksum(file, at, kFooterChecked));
  }
  return takes(file, [](std::span<const std::byte> bytes) {
    RecordShard shard(bytes, "fuzz");
    for (int64_t i = 0; i < shard.size(); ++i) {
      RecordEntry entry = shard.entry(i);
      BONFIRE_CHECK(shard.read(i, i).size() == entry.bytes && entry.label >= 0);
      BONFIRE_CHECK(entry.channels == 0 || entry.bytes == uint64_t{entry.height} * entry.width * entry.channels);
    }
  });
}

}  // namespace bonfire::data::testing
