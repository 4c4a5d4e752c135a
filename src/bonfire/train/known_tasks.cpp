#include "bonfire/train/known_tasks.h"

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/train/tasks/boxes.h"
#include "bonfire/train/tasks/image_classification.h"
#include "bonfire/train/tasks/masked_words.h"
#include "bonfire/train/tasks/sequence_classification.h"

namespace bonfire::train {

std::span<const KnownTask* const> known_tasks() {
  static constexpr const KnownTask* kAll[] = {&kImageClassification, &kMaskedWords, &kBoxes, &kSequenceClassification};
  return kAll;
}

const KnownTask& known_task_of(const std::string& model) {
  const std::string_view name = models::task_of(model);
  for (const KnownTask* task : known_tasks())
    if (task->name == name) return *task;
  BONFIRE_CHECK(false);  // a model is registered for a task that is not in the list
}

void require_known_task(const std::filesystem::path& run) {
  const std::filesystem::path weights = run / "best.safetensors";
  if (base::kind_of(weights) != base::PathKind::file) return;  // whoever reads it says so
  const nn::SafetensorsMetadata said = nn::SafetensorsFile::open(weights).metadata();
  if (auto task = said.find(kTaskOfProgram); task != said.end())
    throw_error<ConfigError>(
        "[train] {} is a run of a program's own task ({}): only that program can evaluate it, predict with it or go on "
        "with it",
        run.string(), task->second);
}

}  // namespace bonfire::train
