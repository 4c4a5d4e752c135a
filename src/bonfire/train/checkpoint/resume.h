#pragma once
// Resume: a run goes on. Its own config.yaml is what it goes on with, and what is given beside `resume` changes it.
//
//   std::optional<Resumption> found = find_resumption(given);              // runs/7, locked, and its checkpoint
//   Config of_run = parse_config_of_run(config_of(*found), "runs/7/config.yaml");
//   Config config = gone_on_with(given, of_run, found->run);               // given wins
//   std::vector<Change> changes = changes_between(of_run, config);         // lr: 0.02 → 0.05
//
// Some keys would make it another experiment: those are compared with what the checkpoint was trained with, by
// fingerprint.h.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bonfire/train/checkpoint/run_lock.h"
#include "bonfire/train/config/config.h"

namespace bonfire::train {

struct Resumption {
  std::filesystem::path run, checkpoint;
  std::vector<std::string> skipped = {};    // newer checkpoints that are damaged, each with what is wrong
  std::unique_ptr<RunLock> lock = nullptr;  // of the run; without one it is only looked at
};

// What `resume` names: a checkpoint, a run, or by `auto` the newest run of the output folder that has saved anything;
// none: there is none yet. ConfigError where a named one has nothing whole, or belongs to another process.
enum class Purpose : uint8_t { look, go_on };
std::optional<Resumption> find_resumption(const Config& given, Purpose purpose = Purpose::go_on);

std::string config_of(const Resumption& found);  // its config.yaml

// The run's settings but for those that were given: in a file, the environment or the command line, or set to something
// else than the default. What a job is started with (num_gpus, backend, collective_timeout) is as given in any case: by
// then it was. ConfigError for another output or init_from than the run's.
Config gone_on_with(const Config& given, const Config& of_run, const std::filesystem::path& run);

// The given settings, with those of the run that a job is started with where they are not given: for who starts it.
Config with_job_of_run(const Config& given);

struct Change {
  std::string key, before, now;
};
std::vector<Change> changes_between(const Config& before, const Config& now);
std::string in_words(const std::vector<Change>& changes);  // "lr 0.02 → 0.05, epochs 3 → 6"

}  // namespace bonfire::train
