#include "bonfire/train/checkpoint.h"

#include <signal.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/private_file.h"
#include "bonfire/nn/weights_checksum.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kBest = "best.safetensors";  // of a run
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kAverage = "average.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kManifest = "manifest.json";
constexpr int64_t kFormat = 1;  // of the manifest, and of what it names
constexpr const char* kPrefix = "step-";
constexpr const char* kUnfinished = "unfinished-";
constexpr const char* kDiscarded = "discarded-";

void write_text(const fs::path& path, const std::string& text) {
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
  base::write_private_file(path, chunks);
}

uint32_t checksum(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
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

// The manifest comes last: a folder that has one is whole.
void write_files(const fs::path& folder, int64_t step, CheckpointContent& content) {
  std::vector<const char*> names{kWeights, kOptimizer, kState};
  auto write = [&](const char* name, nn::StateCopy& values) {
    nn::write_safetensors(folder / name, values.entries(), nn::with_checksum(values.entries(), {}));
  };
  write(kWeights, content.weights);
  write(kOptimizer, content.optimizer);
  if (content.average) {
    write(kAverage, *content.average);
    names.push_back(kAverage);
  }
  write_text(folder / kState, content.state);
  nlohmann::json files;
  for (const char* name : names) {
    base::MappedFile mapped(folder / name);
    files[name] = {{"bytes", mapped.bytes().size()}, {"crc32", checksum(mapped.bytes())}};
  }
  write_text(folder / kManifest, nlohmann::json{{"format", kFormat}, {"step", step}, {"files", files}}.dump(1) + "\n");
  base::sync_folder(folder);
}

std::optional<std::string> find_damage(const fs::path& checkpoint, int64_t& format) {
  try {
    nlohmann::json manifest = nlohmann::json::parse(text_of(base::read_file(checkpoint / kManifest)));
    format = manifest.at("format");
    if (format > kFormat) return "a newer format";
    for (const auto& [name, expected] : manifest.at("files").items()) {
      base::MappedFile file(checkpoint / name);
      size_t bytes = expected.at("bytes").get<size_t>();
      if (file.bytes().size() != bytes)
        return fmt::format("{} has {} bytes, expected {}", name, file.bytes().size(), bytes);
      if (checksum(file.bytes()) != expected.at("crc32").get<uint32_t>()) return name + " is damaged (wrong checksum)";
    }
  } catch (const Error& error) {
    return error.what();
  } catch (const nlohmann::json::exception& error) {
    return fmt::format("{} is damaged: {}", kManifest, error.what());
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
    const fs::path finished = folder / checkpoint_name(found.step);
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

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

fs::path weights_file(const fs::path& checkpoint) { return checkpoint / kWeights; }
fs::path optimizer_file(const fs::path& checkpoint) { return checkpoint / kOptimizer; }
fs::path average_file(const fs::path& checkpoint) { return checkpoint / kAverage; }

std::string read_checkpoint_state(const fs::path& checkpoint) { return text_of(base::read_file(checkpoint / kState)); }

fs::path save_checkpoint(const fs::path& folder, int64_t step, CheckpointContent& content, int64_t keep,
                         const fs::path& spare) {
  std::string name = checkpoint_name(step);
  fs::path unfinished = folder / (kUnfinished + name), finished = folder / name;
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  base::make_private_folder(folder, error);
  finish_or_remove_unfinished(folder);
  base::make_private_folder(unfinished, error);
  if (error) throw_error<DataError>("[checkpoint] cannot make '{}': {}", unfinished.string(), error.message());
  try {
    write_files(unfinished, step, content);
    finish(unfinished, finished);
  } catch (const Error&) {
    fs::remove_all(unfinished, error);  // on a full disk it is in the way
    throw;
  }
  remove_old(folder, keep, spare, finished);
  return finished;
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
  if (format > kFormat)
    throw_error<DataError>(
        "[checkpoint] {} has format {}, this build reads formats up to {}: a newer Bonfire has written it; go on with "
        "that one",
        checkpoint.string(), format, kFormat);
  return damage;
}

fs::path weights_in(const fs::path& place) {
  if (!base::is_folder(place)) return place;
  if (base::exists(weights_file(place))) {
    if (std::optional<std::string> damage = base::exists(place / kManifest) ? damage_of(place) : std::nullopt)
      throw_error<DataError>("[checkpoint] {} is damaged: {}; take another checkpoint of the run", place.string(),
                             *damage);
    return weights_file(place);
  }
  if (base::exists(place / kBest)) return place / kBest;
  if (std::optional<fs::path> newest = newest_checkpoint(place / "checkpoints", nullptr)) return weights_file(*newest);
  throw_error<ConfigError>(
      "[checkpoint] there are no weights in the folder '{}'; expected a run's (with {} or checkpoints/), a "
      "checkpoint's "
      "(with {}), or a safetensors file",
      place.string(), kBest, kWeights);
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
