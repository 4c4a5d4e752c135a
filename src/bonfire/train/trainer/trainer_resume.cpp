#include <fmt/ranges.h>

#include "bonfire/base/error.h"
#include "bonfire/base/program_name.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/checkpoint/restart.h"
#include "bonfire/train/config/config_rules.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

namespace fs = std::filesystem;

// Only the first rank looks for the run: the others need not share its disk.
void Trainer::State::settle() {
  resume_anyway = config.resume_anyway;
  if (is_first_rank()) {
    if (const std::optional<fs::path> run = run_before_restart(config.output)) config.resume = run->string();
    if (std::optional<Resumption> found = find_resumption(config)) {
      for (const std::string& text : found->skipped) note("skipped a damaged checkpoint: " + text);
      folder = found->run;
      resumed_from = found->checkpoint;
      lock = std::move(found->lock);
      if (!lock->taken_over_from().empty())
        note(fmt::format("{} was left behind by {}, which is gone: taken over", folder.string(),
                         lock->taken_over_from()));
    }
  }
  goes_on = text_of_first_rank(resumed_from.empty() ? "begins" : "goes on") == "goes on";
  if (goes_on) use_settings_of_run();
  config.resume.clear();
  config.resume_anyway = false;
  use_settings();
  require_same_on_ranks("train", shared_settings(config));
  // With nothing said here the ranks stand as the program has arranged them.
  if (mesh_of(config) != MeshSizes{}) fleet::arrange(mesh_of(config));
}

void Trainer::State::use_settings_of_run() {
  const std::string yaml = text_of_first_rank(is_first_rank() ? config_of({folder, resumed_from}) : "");
  const fs::path run = text_of_first_rank(folder.string());
  const Config of_run = parse_config_of_run(yaml, (run / "config.yaml").string());
  const Config given = config;
  config = gone_on_with(given, of_run, run);
  changes = changes_between(of_run, config);
  std::erase_if(changes, [](const Change& one) { return one.key.starts_with("resume") || one.key == "num_gpus"; });
  if (!changes.empty()) note(fmt::format("{} goes on with other settings: {}", run.string(), in_words(changes)));
  try {
    check_config(config);
  } catch (const ConfigError& error) {
    throw_error<ConfigError>("{} (with the settings of {}, which count where nothing else is given)", error.what(),
                             run.string());
  }
}

// Before anything is written: a run that is gone on with stays the experiment that it was.
void Trainer::State::compare_with_checkpoint() {
  const std::optional<Fingerprint> was = fingerprint_in(resumed_from);
  if (was && was->own.empty() != fingerprint.own.empty())
    throw_error<ConfigError>("[train] {} is a run {}; go on with it there", folder.string(),
                             was->own.empty() ? "of `bonfire train`, with a model and data that its settings name"
                                              : "of a program's own model and data (" + was->own + ")");
  if (was) {
    if (was->version != fingerprint.version)
      note(fmt::format("the checkpoint was saved by version {}, this is {}", was->version, fingerprint.version));
    is_other_test_data = !is_judged_alike(*was, fingerprint);
    other_than_was = other_experiment(*was, fingerprint);
  } else {
    note("the checkpoint was saved by a version that kept no fingerprint: its data is known by the folder's name only");
    for (const Change& one : changes) {
      const bool of_data = is_where_data_lies(one.key);
      is_other_test_data |= of_data;
      if (of_data || is_of_the_experiment(one.key))
        other_than_was.push_back(fmt::format("{} was {} and is {}", one.key, one.before, one.now));
    }
  }
  if (other_than_was.empty()) return;
  const std::string differences = fmt::format("{}", fmt::join(other_than_was, "; "));
  if (!resume_anyway)
    throw_error<ConfigError>(
        "[train] {0} would become another experiment: {1}. To go on with the run, leave these settings as they were; "
        "to "
        "begin another one from its weights: init_from={0} without resume; to go on all the same, which its log will "
        "say: resume_anyway=true",
        folder.string(), differences);
  note(fmt::format("{} goes on as another experiment (resume_anyway): {}", folder.string(), differences));
}

bool Trainer::State::is_complete() const {
  const bool early = config.early_stop && evaluations_without_gain >= *config.early_stop;
  return goes_on && (step >= total_steps || early);
}

RunEnds Trainer::State::tell_complete() const {
  const bool by_steps = config.steps.has_value();
  note(fmt::format(
      "{0} is complete: {1} steps, {2} epochs{3}; nothing was done or changed. To train longer: {4} train resume={0} "
      "{5}",
      folder.string(), step, train->position().epoch, step < total_steps ? ", stopped early" : "", base::program_name(),
      step < total_steps ? fmt::format("early_stop={}", 2 * *config.early_stop)
      : by_steps         ? fmt::format("steps={}", 2 * step)
                         : fmt::format("epochs={}", 2 * std::max<int64_t>(1, train->position().epoch))));
  return {.checkpoint = last_checkpoint,
          .weights = folder / "best.safetensors",
          .best_score = best_score.value_or(0),
          .last_score = last_score.value_or(0),
          .was_complete = true};
}

}  // namespace bonfire::train
