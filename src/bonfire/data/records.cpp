#include "bonfire/data/records.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/data/record_format.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy = "copy it again, or pack the source again";

template <class Struct>
Struct load(std::span<const std::byte> bytes, uint64_t at) {
  Struct value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// What records.json says of a shard.
struct Said {
  std::string file;
  int64_t samples = 0, bytes = 0;
  uint32_t index_checksum = 0;
};

struct Manifest {
  std::vector<Said> shards;
  std::vector<std::string> class_names;
};

Manifest read_manifest(const fs::path& folder, Split split) {
  fs::path path = folder / kRecordsManifest;
  std::vector<std::byte> bytes = base::read_file(path);
  const char* text = reinterpret_cast<const char*>(bytes.data());
  try {
    nlohmann::json json = nlohmann::json::parse(text, text + bytes.size());
    if (json.at("format") != kRecordsFormat || json.at("version") != kRecordsVersion)
      throw_error<DataError>("[records] {}: format {}, version {}; expected \"{}\", version {}: pack the source again",
                             path.string(), json.at("format").dump(), json.at("version").dump(), kRecordsFormat,
                             kRecordsVersion);
    Manifest manifest;
    json.at("class_names").get_to(manifest.class_names);
    for (const nlohmann::json& shard : json.at(name_of(split))) {
      manifest.shards.push_back(
          {shard.at("file"), shard.at("samples"), shard.at("bytes"), shard.at("index_crc32c").get<uint32_t>()});
      const Said& said = manifest.shards.back();
      if (said.file.find('/') != std::string::npos || said.samples < 0 || said.bytes < 0)
        throw_error<DataError>("[records] {}: cannot use {}; {}", path.string(), shard.dump(), kRemedy);
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[records] {}: {}; {}", path.string(), error.what(), kRemedy);
  }
}

base::MappedFile map_shard(const fs::path& path, const Said& said) {
  if (!base::exists(path))
    throw_error<DataError>("[records] {} is missing; records.json names it: {}", path.string(), kRemedy);
  base::MappedFile file(path);
  if (file.bytes().size() != static_cast<uint64_t>(said.bytes))
    throw_error<DataError>(
        "[records] {}: {} bytes, records.json says {}; it is {}: {}", path.string(), file.bytes().size(), said.bytes,
        file.bytes().size() < static_cast<uint64_t>(said.bytes) ? "cut short" : "not what was packed", kRemedy);
  return file;
}

// Asks for the pages at once: one by one, as they are touched, would be a wait on the disk for each.
void read_ahead(std::span<const std::byte> bytes) {
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(bytes.data()), first = begin / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(first), begin + bytes.size() - first, MADV_WILLNEED);  // only advice: may fail
}

}  // namespace

RecordShard::RecordShard(std::span<const std::byte> file, std::string name) : file_(file), name_(std::move(name)) {
  auto refuse = [this](const std::string& what) {
    throw_error<DataError>("[records] {}: {}; {}", name_, what, kRemedy);
  };
  if (file.size() < sizeof(ShardHeader) + sizeof(ShardFooter))
    refuse(fmt::format("{} bytes, too few for a shard; it is cut short", file.size()));
  if (std::memcmp(file.data(), kShardMagic, 8) != 0) refuse("does not begin as a shard does");
  uint64_t footer_at = file.size() - sizeof(ShardFooter);
  auto footer = load<ShardFooter>(file, footer_at);
  if (std::memcmp(footer.magic, kEndMagic, 8) != 0 ||
      footer.checksum != base::crc32c(file.subspan(footer_at, kFooterChecked)))
    refuse("does not end as a shard does; it is cut short or damaged");
  uint64_t room = footer_at - sizeof(ShardHeader);
  if (footer.count > room / sizeof(RecordEntry) || footer.index_at < sizeof(ShardHeader) ||
      footer.index_at != footer_at - footer.count * sizeof(RecordEntry))
    refuse(fmt::format("an index of {} records at byte {}, which do not fit; it is damaged", footer.count,
                       footer.index_at));
  index_checksum_ = base::crc32c(file.subspan(footer.index_at, footer_at - footer.index_at));
  if (index_checksum_ != footer.index_checksum) refuse("the index does not fit its checksum; the file is damaged");
  index_at_ = footer.index_at;
  count_ = static_cast<int64_t>(footer.count);
  for (int64_t i = 0; i < count_; ++i) {
    RecordEntry e = entry(i);
    bool inside = e.offset >= sizeof(ShardHeader) && e.offset <= index_at_ && e.bytes <= index_at_ - e.offset;
    bool whole = (e.height == 0) == (e.channels == 0) && (e.width == 0) == (e.channels == 0) &&
                 (e.channels == 0 || e.bytes == uint64_t{e.height} * e.width * e.channels);
    if (!inside || !whole || e.label < 0)
      refuse(fmt::format("record {}: {} bytes at {} for {} x {} x {} pixels, label {}; the file is damaged", i, e.bytes,
                         e.offset, e.height, e.width, e.channels, e.label));
  }
}

RecordEntry RecordShard::entry(int64_t record) const {
  BONFIRE_CHECK(record >= 0 && record < count_);
  return load<RecordEntry>(file_, index_at_ + static_cast<uint64_t>(record) * sizeof(RecordEntry));
}

std::span<const std::byte> RecordShard::read(int64_t record, int64_t sample) const {
  RecordEntry e = entry(record);
  std::span<const std::byte> bytes = file_.subspan(e.offset, e.bytes);
  read_ahead(bytes);
  if (uint32_t found = record_checksum(bytes, e); found != e.checksum)
    throw_error<DataError>(
        "[records] {}: record {} (sample {}): checksum {:#010x}, expected {:#010x}; the file is damaged: {}", name_,
        record, sample, found, e.checksum, kRemedy);
  return bytes;
}

Records::Records(const fs::path& folder, Split split) {
  Manifest manifest = read_manifest(folder, split);
  for (const Said& said : manifest.shards) {
    fs::path path = folder / said.file;
    files_.push_back(map_shard(path, said));
    const RecordShard& shard = shards_.emplace_back(files_.back().bytes(), path.string());
    if (shard.index_checksum() != said.index_checksum || shard.size() != said.samples)
      throw_error<DataError>("[records] {}: {} records and index {:#010x}, records.json says {} and {:#010x}; {}",
                             path.string(), shard.size(), shard.index_checksum(), said.samples, said.index_checksum,
                             kRemedy);
    begins_.push_back(begins_.back() + shard.size());
  }
  names_ = std::move(manifest.class_names);
  for (const RecordShard& shard : shards_)
    for (int64_t i = 0; i < shard.size(); ++i) classes_ = std::max(classes_, shard.entry(i).label + 1);
  if (!names_.empty() && classes_ > static_cast<int64_t>(names_.size()))
    throw_error<DataError>("[records] {} has the label {}, records.json names {} classes; {}", folder.string(),
                           classes_ - 1, names_.size(), kRemedy);
}

Records::Place Records::place_of(int64_t index) const {
  require_index(index);
  auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  auto number = static_cast<size_t>(after - begins_.begin()) - 1;
  return {shards_[number], index - begins_[number]};
}

int64_t Records::label(int64_t index) const {
  const auto [shard, record] = place_of(index);
  return shard.entry(record).label;
}

Sample Records::get(int64_t index) const {
  const auto [shard, record] = place_of(index);
  std::span<const std::byte> bytes = shard.read(record, index);
  RecordEntry e = shard.entry(record);
  Shape shape = e.channels == 0 ? Shape{e.bytes} : Shape{e.height, e.width, e.channels};
  Sample sample = image_sample({bytes.begin(), bytes.end()}, shape, e.label);
  sample.source = fmt::format("{}: record {}", shard.name(), record);
  return sample;
}

bool is_records(const fs::path& folder) { return base::exists(folder / kRecordsManifest); }

std::shared_ptr<Records> load_records(const fs::path& folder, Split split) {
  return std::make_shared<Records>(folder, split);
}

}  // namespace bonfire::data
