#include "bonfire/train/describe.h"

#include <fmt/format.h>

#include "bonfire/base/error.h"
#include "bonfire/nn/safetensors.h"
#include "bonfire/train/checkpoint.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

std::string describe_file(const fs::path& path) {
  nn::SafetensorsFile file = nn::SafetensorsFile::open(path);
  std::string text = path.string() + "\n";
  int64_t elements = 0;
  size_t bytes = 0, width = 4;
  for (const nn::TensorEntry& entry : file.entries()) width = std::max(width, entry.name.size());
  for (const nn::TensorEntry& entry : file.entries()) {
    text += fmt::format("  {:<{}}  {:<5} {}\n", entry.name, width, name_of(entry.dtype), to_string(entry.shape));
    elements += entry.shape.count();
    bytes += entry.bytes.size();
  }
  for (const auto& [key, value] : file.metadata()) text += fmt::format("  # {}: {}\n", key, value);
  return text + fmt::format("  {} tensors, {} elements, {:.1f} MB\n", file.entries().size(), elements,
                            static_cast<double>(bytes) / 1e6);
}

std::string describe_checkpoint(const fs::path& path) {
  std::optional<std::string> damage = damage_of(path);
  std::string text = fmt::format("checkpoint {}: {}\n", path.string(), damage ? "DAMAGED: " + *damage : "whole");
  if (damage) return text;
  return text + describe_file(weights_file(path)) + describe_file(optimizer_file(path));
}

}  // namespace

std::string describe(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return describe_file(path);
  if (fs::exists(path / "manifest.json", ignored)) return describe_checkpoint(path);
  std::vector<std::string> skipped;
  std::optional<fs::path> newest = newest_checkpoint(path / "checkpoints", &skipped);
  std::string text;
  for (const std::string& one : skipped) text += "damaged: " + one + "\n";
  if (newest) return text + describe_checkpoint(*newest);
  throw_error<DataError>(
      "[inspect] {} is neither a safetensors file, nor a checkpoint, nor a run with a whole checkpoint{}",
      path.string(), skipped.empty() ? "" : " (" + skipped[0] + ")");
}

}  // namespace bonfire::train
