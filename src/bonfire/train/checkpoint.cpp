#include "bonfire/train/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kBest = "best.safetensors";  // of a run
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kAverage = "average.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kPrefix = "step-";
constexpr const char* kUnfinished = "unfinished-";

void sync_folder(const fs::path& folder) {
  int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool synced = file >= 0 && fsync(file) == 0;
  int error = errno;
  if (file >= 0) close(file);
  if (!synced) throw_error<DataError>("[checkpoint] cannot sync '{}': {}", folder.string(), std::strerror(error));
}

void write_text(const fs::path& path, const std::string& text) {
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
  base::write_file_atomically(path, chunks);
}

uint32_t checksum(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Folders called step-N, newest first.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!base::is_folder(folder)) return found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    if (entry->path().filename().string().starts_with(kPrefix) && base::is_folder(entry->path()))
      found.push_back(entry->path());
  if (error) throw_error<DataError>("[checkpoint] cannot read '{}': {}", folder.string(), error.message());
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

// The manifest comes last: a folder that has one is whole.
void write_files(const fs::path& folder, int64_t step, CheckpointContent& content) {
  std::vector<const char*> names{kWeights, kOptimizer, kState};
  nn::write_safetensors(folder / kWeights, content.weights.entries());
  nn::write_safetensors(folder / kOptimizer, content.optimizer.entries());
  if (content.average) {
    nn::write_safetensors(folder / kAverage, content.average->entries());
    names.push_back(kAverage);
  }
  write_text(folder / kState, content.state);
  nlohmann::json files;
  for (const char* name : names) {
    base::MappedFile mapped(folder / name);
    files[name] = {{"bytes", mapped.bytes().size()}, {"crc32", checksum(mapped.bytes())}};
  }
  write_text(folder / kManifest, nlohmann::json{{"format", 1}, {"step", step}, {"files", files}}.dump(1) + "\n");
  sync_folder(folder);
}

void remove_old(const fs::path& folder, int64_t keep, const fs::path& spare) {
  std::error_code ignored;  // what cannot be removed now is removed next time
  int64_t kept = 0;
  for (const fs::path& checkpoint : checkpoints_in(folder)) {
    if (checkpoint.filename() == spare.filename() || kept++ < keep) continue;
    // Under another name first: a half-removed checkpoint must not look like one.
    fs::path away = folder / (kUnfinished + checkpoint.filename().string());
    fs::rename(checkpoint, away, ignored);
    fs::remove_all(away, ignored);
  }
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
  fs::create_directories(folder, error);
  fs::remove_all(unfinished, error);
  fs::create_directory(unfinished, error);
  if (error) throw_error<DataError>("[checkpoint] cannot make '{}': {}", unfinished.string(), error.message());
  try {
    write_files(unfinished, step, content);
    fs::remove_all(finished, error);  // of the same step, from before a resume
    fs::rename(unfinished, finished, error);
    if (error) throw_error<DataError>("[checkpoint] cannot rename '{}': {}", unfinished.string(), error.message());
  } catch (const Error&) {
    fs::remove_all(unfinished, error);  // on a full disk it is in the way
    throw;
  }
  sync_folder(folder);
  remove_old(folder, keep, spare);
  return finished;
}

std::optional<std::string> damage_of(const fs::path& checkpoint) {
  try {
    nlohmann::json manifest = nlohmann::json::parse(text_of(base::read_file(checkpoint / kManifest)));
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

fs::path weights_in(const fs::path& place) {
  if (!base::is_folder(place)) return place;
  if (base::exists(weights_file(place))) return weights_file(place);
  if (base::exists(place / kBest)) return place / kBest;
  if (std::optional<fs::path> newest = newest_checkpoint(place / "checkpoints", nullptr)) return weights_file(*newest);
  throw_error<ConfigError>(
      "[checkpoint] there are no weights in the folder '{}'; expected a run's (with {} or checkpoints/), a "
      "checkpoint's "
      "(with {}), or a safetensors file",
      place.string(), kBest, kWeights);
}

std::optional<fs::path> newest_checkpoint(const fs::path& folder, std::vector<std::string>* skipped) {
  for (const fs::path& checkpoint : checkpoints_in(folder)) {
    std::optional<std::string> damage = damage_of(checkpoint);
    if (!damage) return checkpoint;
    if (skipped != nullptr) skipped->push_back(checkpoint.string() + ": " + *damage);
  }
  return {};
}

}  // namespace bonfire::train
