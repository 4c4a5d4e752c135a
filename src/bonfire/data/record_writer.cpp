#include "bonfire/data/record_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/record_format.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

template <class Struct>
std::span<const std::byte> bytes_of(const Struct& value) {
  return std::as_bytes(std::span(&value, 1));
}

// A folder that others leave alone as long as it is locked, and that goes with this object unless it gets its name.
class UnfinishedFolder {
 public:
  explicit UnfinishedFolder(fs::path target) : target_(std::move(target)) {
    if (!target_.has_filename()) target_ = target_.parent_path();  // "packed/"
    std::error_code error;
    if (base::exists(target_))
      throw_error<ConfigError>("[records] '{}' is there already; remove it or choose another name", target_.string());
    std::string prefix = target_.filename().string() + ".unfinished-";
    fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
    fs::create_directories(parent, error);
    remove_abandoned(parent, prefix);
    path_ = parent / (prefix + std::to_string(::getpid()));
    if (!fs::create_directory(path_, error))
      throw_error<ConfigError>("[records] cannot make '{}': {}; choose another place", path_.string(),
                               error ? error.message() : "it is being written already");
    lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ::flock(lock_, LOCK_EX | LOCK_NB);
  }
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;
  ~UnfinishedFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
    ::close(lock_);
  }

  const fs::path& path() const { return path_; }

  void take_its_name() {
    base::sync_folder(path_);
    std::error_code error;
    fs::rename(path_, target_, error);
    if (error)
      throw_error<DataError>("[records] cannot rename '{}' to '{}': {}", path_.string(), target_.string(),
                             error.message());
    base::sync_folder(path_.parent_path());
    path_.clear();
  }

 private:
  // What processes that were killed have left: nobody holds its lock.
  static void remove_abandoned(const fs::path& parent, const std::string& prefix) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
      if (!entry.path().filename().string().starts_with(prefix)) continue;
      int folder = ::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (folder < 0) continue;
      if (::flock(folder, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), ignored);
      ::close(folder);
    }
  }

  fs::path target_, path_;
  int lock_ = -1;
};

// The shards of one split.
class Part {
 public:
  Part(Split split, fs::path folder, const RecordWriterOptions& options)
      : split_(split), folder_(std::move(folder)), options_(options) {}

  void add(std::span<const std::byte> bytes, RecordEntry entry) {
    if (!file_) begin_shard();
    entry.offset = file_->size();
    entry.bytes = static_cast<uint32_t>(bytes.size());
    entry.checksum = record_checksum(bytes, entry);
    file_->write(bytes);
    index_.push_back(entry);
    ++packed_.samples;
    bool full = static_cast<int64_t>(file_->size()) >= options_.shard_bytes ||
                static_cast<int64_t>(index_.size()) == options_.shard_samples;
    if (full) end_shard();
  }

  nlohmann::json finish() {
    if (file_) end_shard();
    return said_;
  }
  const PackedPart& packed() const { return packed_; }

 private:
  void begin_shard() {
    name_ = fmt::format("{}-{:05}.records", name_of(split_), packed_.shards);
    file_.emplace(folder_ / name_);
    ShardHeader header{{}, static_cast<uint32_t>(packed_.shards), 0};
    std::memcpy(header.magic, kShardMagic, sizeof header.magic);
    file_->write(bytes_of(header));
  }

  void end_shard() {
    auto index = std::as_bytes(std::span(index_));
    ShardFooter footer{file_->size(), index_.size(), base::crc32c(index), 0, {}};
    footer.checksum = base::crc32c(bytes_of(footer).first(kFooterChecked));
    std::memcpy(footer.magic, kEndMagic, sizeof footer.magic);
    file_->write(index);
    file_->write(bytes_of(footer));
    file_->finish();
    said_.push_back({{"file", name_},
                     {"samples", index_.size()},
                     {"bytes", file_->size()},
                     {"index_crc32c", footer.index_checksum}});
    ++packed_.shards;
    packed_.bytes += static_cast<int64_t>(file_->size());
    file_.reset();
    index_.clear();
  }

  Split split_;
  fs::path folder_;
  const RecordWriterOptions& options_;
  std::string name_;
  std::optional<base::FileWriter> file_;
  std::vector<RecordEntry> index_;
  nlohmann::json said_ = nlohmann::json::array();
  PackedPart packed_;
};

// Everything but where the record is.
RecordEntry describe(const Sample& sample, int64_t number) {
  auto refuse = [&](const char* expected) {
    throw_error<DataError>("[records] sample {}{} is {} {} with a label {} {}; {}", number,
                           sample.source.empty() ? "" : " (" + sample.source + ")", name_of(sample.input.dtype),
                           to_string(sample.input.shape), name_of(sample.label.dtype), to_string(sample.label.shape),
                           expected);
  };
  const Shape& shape = sample.input.shape;
  if (sample.input.dtype != DType::u8 || (shape.rank() != 1 && shape.rank() != 3))
    refuse("records hold images, u8 [H, W, C], and files, u8 [bytes]");
  if (sample.label.dtype != DType::i64 || sample.label.shape.rank() != 0) refuse("expected a class, i64 []");
  RecordEntry entry{};
  entry.label = label_of(sample);
  if (entry.label < 0) refuse("labels are classes from 0");
  if (sample.input.bytes.size() > UINT32_MAX) refuse("a record has less than 4 GiB");
  if (shape.rank() == 3) {
    if (shape[0] < 1 || shape[0] > UINT16_MAX || shape[1] < 1 || shape[1] > UINT16_MAX || shape[2] < 1 ||
        shape[2] > UINT8_MAX)
      refuse("expected 1 to 65535 rows and columns of 1 to 255 channels");
    entry.height = static_cast<uint16_t>(shape[0]);
    entry.width = static_cast<uint16_t>(shape[1]);
    entry.channels = static_cast<uint8_t>(shape[2]);
  }
  return entry;
}

}  // namespace

struct RecordWriter::State {
  RecordWriterOptions options;
  UnfinishedFolder folder;
  Part train, test;

  State(fs::path path, const RecordWriterOptions& given)
      : options(given),
        folder(std::move(path)),
        train(Split::train, folder.path(), options),
        test(Split::test, folder.path(), options) {}
};

RecordWriter::RecordWriter(fs::path folder, const RecordWriterOptions& options) {
  if (options.shard_bytes < 1 || options.shard_samples < 0)
    throw_error<ConfigError>("[records] shards of {} bytes and {} samples, expected at least 1 and 0",
                             options.shard_bytes, options.shard_samples);
  state_ = std::make_unique<State>(std::move(folder), options);
}
RecordWriter::~RecordWriter() = default;

void RecordWriter::add(Split split, const Sample& sample) {
  Part& part = split == Split::train ? state_->train : state_->test;
  part.add(sample.input.bytes, describe(sample, part.packed().samples));
}

void RecordWriter::finish() {
  State& s = *state_;
  nlohmann::json manifest{{"format", kRecordsFormat},
                          {"version", kRecordsVersion},
                          {"class_names", s.options.class_names},
                          {"train", s.train.finish()},
                          {"test", s.test.finish()}};
  std::string text = manifest.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
  base::write_file_atomically(s.folder.path() / kRecordsManifest, chunks);
  s.folder.take_its_name();
}

PackedPart RecordWriter::packed(Split split) const {
  return split == Split::train ? state_->train.packed() : state_->test.packed();
}

}  // namespace bonfire::data
