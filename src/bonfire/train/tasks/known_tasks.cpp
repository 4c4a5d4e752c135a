#include "bonfire/train/tasks/known_tasks.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/tasks/boxes.h"
#include "bonfire/train/tasks/image_classification.h"
#include "bonfire/train/tasks/masked_words.h"
#include "bonfire/train/tasks/next_token.h"
#include "bonfire/train/tasks/sequence_classification.h"

namespace bonfire::train {

std::span<const KnownTask* const> known_tasks() {
  static constexpr const KnownTask* kAll[] = {&kImageClassification, &kMaskedWords, &kNextToken, &kBoxes,
                                              &kSequenceClassification};
  return kAll;
}

const KnownTask& known_task_of(const std::string& model) {
  const std::string_view name = models::task_of(model);
  const std::span<const KnownTask* const> all = known_tasks();
  const auto found = std::find_if(all.begin(), all.end(), [&](const KnownTask* task) { return task->name == name; });
  BONFIRE_CHECK(found != all.end(), "model {} is registered for {}, which is not in the list of tasks", model, name);
  return **found;
}

std::filesystem::path run_of(const std::filesystem::path& place) {
  const bool is_file = base::kind_of(place) == base::PathKind::file;
  if (!is_file && !base::exists(place / "manifest.json")) return place;
  std::filesystem::path folder = std::filesystem::absolute(place);
  while (folder != folder.parent_path()) {
    folder = folder.parent_path();
    if (base::exists(folder / "config.yaml")) return folder;
  }
  throw_error<ConfigError>(
      "[train] {} is in no run's folder: none above it has a config.yaml, which says what model and data it is of",
      place.string());
}

void require_known_task(const std::filesystem::path& run) {
  std::filesystem::path weights = run / "best.safetensors";
  if (base::kind_of(weights) != base::PathKind::file) {
    const auto newest = newest_checkpoint(run / "checkpoints");
    if (!newest) return;  // whoever reads weights says so
    weights = weights_file(*newest);
  }
  const nn::SafetensorsMetadata said = nn::SafetensorsFile::open(weights).metadata();
  if (auto task = said.find(kTaskOfProgram); task != said.end())
    throw_error<ConfigError>(
        "[train] {} is a run of a program's own task ({}): only that program can evaluate it, predict with it or go on "
        "with it",
        run.string(), task->second);
}

}  // namespace bonfire::train
