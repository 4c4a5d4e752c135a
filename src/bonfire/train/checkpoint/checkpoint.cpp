#include "bonfire/train/checkpoint/checkpoint.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/hash.h"
#include "bonfire/base/log_file.h"
#include "bonfire/base/private_file.h"
#include "bonfire/comm/same_settings.h"
#include "bonfire/nn/weights_checksum.h"
#include "bonfire/train/checkpoint/manifest.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kBest = "best.safetensors";  // of a run
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kAverage = "average.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kOfRank = ".rank-";  // weights.rank-2.safetensors
constexpr const char* kPrefix = "step-";
constexpr const char* kUnfinished = "unfinished-";
constexpr const char* kDiscarded = "discarded-";

void write_text(const fs::path& path, const std::string& text) {
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
  base::write_private_file(path, chunks);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct FoundCheckpoint {
  int64_t step;
  bool finished;
  fs::path path;
};

// The N of step-N. Names are padded to 8 digits, and longer from step 100,000,000 on.
std::optional<int64_t> step_in(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(std::strlen(kPrefix));
  int64_t step = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return {};
  return step;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!base::is_folder(folder)) return found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    found.push_back(entry->path());
  if (error) throw_error<DataError>("[checkpoint] cannot read '{}': {}", folder.string(), error.message());
  return found;
}

// Folders called step-N and unfinished-step-N, newest first; of one step the finished one first.
std::vector<FoundCheckpoint> checkpoints_in(const fs::path& folder) {
  std::vector<FoundCheckpoint> found;
  for (const fs::path& path : entries_of(folder)) {
    std::string name = path.filename();
    const bool finished = !name.starts_with(kUnfinished);
    if (!finished) name.erase(0, std::strlen(kUnfinished));
    std::optional<int64_t> step = step_in(name);
    if (step && base::is_folder(path)) found.push_back({*step, finished, path});
  }
  std::sort(found.begin(), found.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    return std::pair(a.step, a.finished) > std::pair(b.step, b.finished);
  });
  return found;
}

// The tensors of one kind that go into a file, and the file's name for a rank.
struct TensorList {
  const char* file;
  std::vector<nn::TensorEntry> entries;
  nn::SafetensorsMetadata metadata;
};

std::vector<TensorList> lists_of(CheckpointContent& content) {
  auto list = [](const char* file, nn::StateCopy& values, const nn::SafetensorsMetadata& metadata) {
    return TensorList{file, {values.entries().begin(), values.entries().end()}, metadata};
  };
  std::vector<TensorList> lists{list(kWeights, content.weights, content.metadata),
                                list(kOptimizer, content.optimizer, {})};
  if (content.average) lists.push_back(list(kAverage, *content.average, content.metadata));
  return lists;
}

std::string file_of_rank(const fs::path& file, int rank) {
  return rank == 0 ? file.string()
                   : fmt::format("{}{}{}{}", file.stem().string(), kOfRank, rank, file.extension().string());
}

// Returns what the manifest says of the file.
ManifestFile write_tensors(const fs::path& file, const TensorList& list) {
  nn::write_safetensors(file, list.entries, nn::with_checksum(list.entries, list.metadata));
  ManifestFile said = measure_file(file);
  for (const nn::TensorEntry& entry : list.entries)
    if (entry.slice != nullptr) said.slices.emplace(entry.name, *entry.slice);
  return said;
}

// The manifest comes last: a folder that has one is whole.
void finish_files(const fs::path& folder, int64_t step, const std::string& state,
                  std::map<std::string, ManifestFile> files) {
  write_text(folder / kState, state);
  files[kState] = measure_file(folder / kState);
  const bool has_slices = std::any_of(files.begin(), files.end(), [](const auto& file) {
    return !file.second.slices.empty() || file.first.find(kOfRank) != std::string::npos;
  });
  write_manifest(folder, {.format = has_slices ? 2 : 1, .step = step, .files = std::move(files)});
  base::sync_folder(folder);
}

void write_files(const fs::path& folder, int64_t step, CheckpointContent& content) {
  std::map<std::string, ManifestFile> files;
  for (const TensorList& list : lists_of(content)) {
    for (const nn::TensorEntry& entry : list.entries)
      if (entry.slice != nullptr && entry.slice->count() != entry.whole().count())
        throw_error<DataError>("of {} only {} is here; ranks that hold slices save together", entry.name,
                               to_string(*entry.slice));
    files[list.file] = write_tensors(folder / list.file, list);
  }
  finish_files(folder, step, content.state, std::move(files));
}

std::optional<std::string> find_damage(const fs::path& checkpoint, int64_t& format) {
  try {
    const Manifest manifest = read_manifest(checkpoint);
    format = manifest.format;
    if (format > Manifest::kNewest) return "a newer format";
    for (const auto& [name, expected] : manifest.files)
      if (const std::string found = difference(checkpoint / name, expected); !found.empty()) return found;
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Under another name first: a half-removed checkpoint must not look like one.
void discard(const fs::path& checkpoint) {
  std::error_code ignored;  // what cannot be removed now is removed next time
  fs::path away = checkpoint.parent_path() / (kDiscarded + checkpoint.filename().string());
  fs::remove_all(away, ignored);
  fs::rename(checkpoint, away, ignored);
  fs::remove_all(away, ignored);
}

void remove_old(const fs::path& folder, int64_t keep, const fs::path& spare, const fs::path& newest) {
  int64_t kept = 0;
  for (const FoundCheckpoint& found : checkpoints_in(folder)) {
    const fs::path name = found.path.filename();
    if (found.finished && name != spare.filename() && kept++ >= keep && name != newest.filename()) discard(found.path);
  }
}

// Gives the unfinished checkpoint its name, which one of the same step may have: from before a resume.
void finish(const fs::path& unfinished, const fs::path& finished) {
  const fs::path folder = finished.parent_path(), old = folder / (kDiscarded + finished.filename().string());
  std::error_code error, ignored;
  const bool again = base::exists(finished);
  if (again) {
    fs::remove_all(old, ignored);
    base::sync_folder(folder);  // the new one is on the disk under a name before the old one loses its own
    fs::rename(finished, old, error);
  }
  if (!error) fs::rename(unfinished, finished, error);
  if (error) {
    if (again && !base::exists(finished)) fs::rename(old, finished, ignored);
    throw_error<DataError>("[checkpoint] cannot rename '{}': {}", unfinished.string(), error.message());
  }
  base::sync_folder(folder);
  if (again) fs::remove_all(old, ignored);
}

// Whole ones get their name, unless a whole one has it; the rest is removed.
void finish_or_remove_unfinished(const fs::path& folder) {
  std::error_code ignored;
  for (const FoundCheckpoint& found : checkpoints_in(folder)) {
    if (found.finished) continue;
    fs::path finished = folder / checkpoint_name(found.step);
    const bool whole = !damage_of(found.path), wanted = !base::exists(finished) || damage_of(finished);
    if (whole && wanted)
      finish(found.path, finished);
    else
      fs::remove_all(found.path, ignored);
  }
  for (const fs::path& path : entries_of(folder))
    if (path.filename().string().starts_with(kDiscarded)) fs::remove_all(path, ignored);
}

// .bonfire-PROCESS-N.tmp (base/file.h) of a process that is gone.
bool is_abandoned(const fs::path& file) {
  int process = 0, number = 0, end = 0;
  const std::string name = file.filename();
  std::sscanf(name.c_str(), ".bonfire-%d-%d.tmp%n", &process, &number, &end);
  return end == static_cast<int>(name.size()) && process > 0 && kill(process, 0) != 0 && errno == ESRCH;
}

}  // namespace

std::vector<fs::path> checkpoints_after(const fs::path& folder, int64_t step) {
  std::vector<fs::path> later;
  for (const FoundCheckpoint& found : checkpoints_in(folder))
    if (found.finished && found.step > step) later.push_back(found.path);
  return later;
}

fs::path new_folder_aside(const fs::path& run) {
  for (int number = 1;; ++number) {
    fs::path folder = run / fmt::format("set-aside-{}", number);
    std::error_code error;
    if (base::make_private_folder(folder, error)) return folder;
    if (error)
      throw_error<DataError>("[checkpoint] cannot make '{}': {}", folder.string(), base::write_problem(error.value()));
  }
}

void move_into(const fs::path& folder, const fs::path& what) {
  std::error_code error;
  fs::rename(what, folder / what.filename(), error);
  if (error)
    throw_error<DataError>("[checkpoint] cannot move '{}' into '{}': {}", what.string(), folder.string(),
                           error.message());
}

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

fs::path weights_file(const fs::path& checkpoint) { return checkpoint / kWeights; }
fs::path optimizer_file(const fs::path& checkpoint) { return checkpoint / kOptimizer; }
fs::path average_file(const fs::path& checkpoint) { return checkpoint / kAverage; }

std::string read_checkpoint_state(const fs::path& checkpoint) { return text_of(base::read_file(checkpoint / kState)); }

namespace {

// A folder for the new checkpoint, with what others have left put away.
void begin_unfinished(const fs::path& folder, const fs::path& unfinished) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  base::make_private_folder(folder, error);
  finish_or_remove_unfinished(folder);
  base::make_private_folder(unfinished, error);
  if (error) throw_error<DataError>("[checkpoint] cannot make '{}': {}", unfinished.string(), error.message());
}

// Does this rank's part, and hears how it went on the others: an error of one is one of all, and says whose it is.
// Returns what each rank's part has returned.
std::vector<std::string> together(comm::Group& ranks, const std::function<std::string()>& part) {
  nlohmann::json mine;
  try {
    mine["done"] = part();
  } catch (const Error& error) {
    mine["error"] = error.what();
  }
  std::vector<std::string> done;
  std::string failure;
  const std::vector<std::string> all =
      comm::exchange_texts(ranks, mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (size_t r = 0; r < all.size(); ++r) {
    const nlohmann::json said = nlohmann::json::parse(all[r]);
    if (said.contains("error") && failure.empty())
      failure = fmt::format("rank {}: {}", r, said["error"].get<std::string>());
    if (said.contains("done")) done.push_back(said["done"]);
  }
  if (!failure.empty()) throw_error<DataError>("{}", failure);
  return done;
}

std::string name_of_piece(const TensorList& list, const nn::TensorEntry& entry) {
  return fmt::format("{} {} {}", list.file, entry.name, entry.slice == nullptr ? "" : to_string(*entry.slice));
}

// Leaves out what an earlier rank has too.
void keep_own(comm::Group& ranks, std::vector<TensorList>& lists) {
  nlohmann::json mine = nlohmann::json::array();
  for (const TensorList& list : lists)
    for (const nn::TensorEntry& entry : list.entries) mine.push_back(name_of_piece(list, entry));
  const std::vector<std::string> all = comm::exchange_texts(ranks, mine.dump());
  std::set<std::string> taken;
  for (int r = 0; r < ranks.rank(); ++r)
    for (const auto& piece : nlohmann::json::parse(all[static_cast<size_t>(r)])) taken.insert(piece.get<std::string>());
  for (TensorList& list : lists)
    std::erase_if(list.entries, [&](const nn::TensorEntry& one) { return taken.contains(name_of_piece(list, one)); });
}

// Of one rank; what the manifest says of its files.
std::string write_own(const fs::path& unfinished, int rank, const std::vector<TensorList>& lists) {
  if (!base::is_folder(unfinished))
    throw_error<DataError>(
        "'{}', which the first rank has made, is not there: ranks that hold slices write one checkpoint together and "
        "need a file system that all of them see",
        unfinished.string());
  std::map<std::string, ManifestFile> files;
  for (const TensorList& list : lists) {
    if (list.entries.empty() && rank > 0) continue;
    const std::string name = file_of_rank(list.file, rank);
    files[name] = write_tensors(unfinished / name, list);
  }
  base::sync_folder(unfinished);
  return files_to_json(files);
}

// Of the first rank, which sees what the others say they have written.
std::map<std::string, ManifestFile> collect_files(const fs::path& unfinished,
                                                  const std::vector<std::string>& of_ranks) {
  std::map<std::string, ManifestFile> files;
  for (size_t r = 0; r < of_ranks.size(); ++r)
    for (auto& [name, file] : files_from_json(of_ranks[r])) {
      std::error_code error;
      const uintmax_t bytes = fs::file_size(unfinished / name, error);
      if (error || bytes != file.bytes)
        throw_error<DataError>(
            "rank {} has written '{}' ({} bytes), and the first rank does not see it so: ranks that hold slices need a "
            "file system that all of them see",
            r, (unfinished / name).string(), file.bytes);
      files[name] = std::move(file);
    }
  return files;
}

}  // namespace

fs::path save_checkpoint(const fs::path& folder, int64_t step, CheckpointContent& content, int64_t keep,
                         const fs::path& spare) {
  const std::string name = checkpoint_name(step);
  const fs::path unfinished = folder / (kUnfinished + name);
  fs::path finished = folder / name;
  begin_unfinished(folder, unfinished);
  try {
    write_files(unfinished, step, content);
    finish(unfinished, finished);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);  // on a full disk it is in the way
    throw;
  }
  remove_old(folder, keep, spare, finished);
  return finished;
}

fs::path save_checkpoint_of_ranks(comm::Group& ranks, const fs::path& folder, int64_t step, CheckpointContent& content,
                                  int64_t keep, const fs::path& spare) {
  const std::string name = checkpoint_name(step);
  const fs::path unfinished = folder / (kUnfinished + name);
  fs::path finished = folder / name;
  const bool is_first = ranks.rank() == 0;
  std::vector<TensorList> lists = lists_of(content);
  try {
    together(ranks, [&] {
      if (is_first) begin_unfinished(folder, unfinished);
      return std::string();
    });
    keep_own(ranks, lists);
    const std::vector<std::string> written =
        together(ranks, [&] { return write_own(unfinished, ranks.rank(), lists); });
    together(ranks, [&] {
      if (!is_first) return std::string();
      finish_files(unfinished, step, content.state, collect_files(unfinished, written));
      finish(unfinished, finished);
      return std::string();
    });
  } catch (const Error&) {
    std::error_code ignored;
    if (is_first) fs::remove_all(unfinished, ignored);
    throw;
  }
  if (is_first) remove_old(folder, keep, spare, finished);
  return finished;
}

nn::TensorFiles open_tensors(const fs::path& file) {
  nn::TensorFiles files(file.string());
  const fs::path folder = file.parent_path();
  const std::string own = file.filename(), of_ranks = file.stem().string() + kOfRank;
  const bool is_ours = own == kWeights || own == kOptimizer || own == kAverage;
  Manifest manifest;
  if (is_ours && base::exists(manifest_file(folder))) manifest = read_manifest(folder);
  files.add(file, manifest.files[own].slices);
  for (const auto& [name, said] : manifest.files)
    if (name.starts_with(of_ranks)) files.add(folder / name, said.slices);
  return files;
}

void sweep_leftovers(const fs::path& run) {
  const fs::path checkpoints = run / "checkpoints";
  finish_or_remove_unfinished(checkpoints);
  std::error_code ignored;
  for (const fs::path& folder : {run, checkpoints})
    for (const fs::path& file : entries_of(folder))
      if (is_abandoned(file)) fs::remove(file, ignored);
}

fs::path take_up(const fs::path& run, const fs::path& checkpoint) {
  sweep_leftovers(run);
  std::string name = checkpoint.filename();
  if (name.starts_with(kUnfinished)) name.erase(0, std::strlen(kUnfinished));
  return checkpoint.parent_path() / name;
}

std::optional<std::string> damage_of(const fs::path& checkpoint) {
  int64_t format = 0;
  std::optional<std::string> damage = find_damage(checkpoint, format);
  if (format > Manifest::kNewest)
    throw_error<DataError>(
        "[checkpoint] {} has format {}, this build reads formats up to {}: a newer Bonfire has written it; go on with "
        "that one",
        checkpoint.string(), format, Manifest::kNewest);
  return damage;
}

fs::path weights_in(const fs::path& place) {
  if (!base::is_folder(place)) return place;
  if (base::exists(weights_file(place))) {
    if (std::optional<std::string> damage = base::exists(manifest_file(place)) ? damage_of(place) : std::nullopt)
      throw_error<DataError>("[checkpoint] {} is damaged: {}; take another checkpoint of the run", place.string(),
                             *damage);
    return weights_file(place);
  }
  if (base::exists(place / kBest)) return place / kBest;
  if (std::optional<fs::path> newest = newest_checkpoint(place / "checkpoints", nullptr))
    return base::exists(average_file(*newest)) ? average_file(*newest) : weights_file(*newest);
  throw_error<ConfigError>(
      "[checkpoint] there are no weights in the folder '{}'; expected a run's (with {} or checkpoints/), a "
      "checkpoint's "
      "(with {}), or a safetensors file",
      place.string(), kBest, kWeights);
}

std::string identity_of_weights(const fs::path& file) {
  constexpr uint64_t kBeginning = 1 << 20, kSample = 4096, kSamples = 64;  // bytes
  const uint64_t size = fs::file_size(file);
  std::ifstream in(file, std::ios::binary);
  base::Hash128 hash;
  std::string bytes;
  const auto read = [&](uint64_t place, uint64_t count) {
    bytes.resize(std::min(count, size - place));
    in.seekg(static_cast<std::streamoff>(place));
    if (!in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())))
      throw_error<DataError>("[checkpoint] {} could not be read", file.string());
    hash.mix(std::string_view(bytes));
  };
  read(0, kBeginning);
  for (uint64_t i = 0; size > kBeginning && i < kSamples; ++i) read(i * (size - kSample) / kSamples, kSample);
  return fmt::format("{} bytes, {:016x}", size, hash.low);
}

std::optional<fs::path> newest_checkpoint(const fs::path& folder, std::vector<std::string>* skipped) {
  for (const FoundCheckpoint& found : checkpoints_in(folder)) {
    std::optional<std::string> damage = damage_of(found.path);
    if (!damage) return found.path;
    if (skipped != nullptr && found.finished) skipped->push_back(found.path.string() + ": " + *damage);
  }
  return {};
}

}  // namespace bonfire::train
