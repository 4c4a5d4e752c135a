#include "bonfire/train/checkpoint/resume.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/program_name.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/config/config_keys.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

// Those of the output folder, newest first.
std::vector<fs::path> runs_in(const fs::path& output) {
  std::vector<std::pair<int, fs::path>> runs;
  std::error_code error;
  if (base::is_folder(output))
    for (fs::directory_iterator entry(output, error); !error && entry != fs::directory_iterator();
         entry.increment(error))
      if (int number = std::atoi(entry->path().filename().c_str()); number > 0)
        runs.emplace_back(number, entry->path());
  if (error) throw_error<ConfigError>("[train] cannot read the output '{}': {}", output.string(), error.message());
  std::sort(runs.rbegin(), runs.rend());
  std::vector<fs::path> paths;
  for (auto& [number, run] : runs) paths.push_back(std::move(run));
  return paths;
}

std::unique_ptr<RunLock> lock_for(Purpose purpose, const fs::path& run) {
  return purpose == Purpose::go_on ? std::make_unique<RunLock>(run) : nullptr;
}

Resumption from_checkpoint(const fs::path& checkpoint, Purpose purpose) {
  fs::path run = fs::absolute(checkpoint).parent_path().parent_path();
  if (!base::exists(run / "config.yaml"))
    throw_error<ConfigError>(
        "[train] the checkpoint {} is not in the folder of a run (there is no {}), so it is not known what to go on "
        "with; begin another run from its weights with init_from={}",
        checkpoint.string(), (run / "config.yaml").string(), checkpoint.string());
  Resumption found{.run = checkpoint.parent_path().parent_path(), .checkpoint = checkpoint};
  if (found.run.empty()) found.run = run;
  found.lock = lock_for(purpose, found.run);
  if (auto damage = damage_of(checkpoint))
    throw_error<DataError>("[train] the checkpoint {} is damaged: {}", checkpoint.string(), *damage);
  return found;
}

std::optional<Resumption> from_run(const fs::path& run, Purpose purpose) {
  if (!base::is_folder(run / "checkpoints")) return {};  // nothing was saved: nobody needs it
  Resumption found{.run = run, .checkpoint = {}, .lock = lock_for(purpose, run)};
  std::optional<fs::path> newest = newest_checkpoint(run / "checkpoints", &found.skipped);
  if (!newest) return {};
  found.checkpoint = *newest;
  return found;
}

// Where each key's value is, of a configuration that outlives this.
class Members {
 public:
  explicit Members(const Config& config) { visit_keys(config, *this); }
  void section(std::string_view) {}
  template <class T>
  void key(std::string_view name, const T& value, std::string_view, const KeyOptions&) {
    at_[std::string(name)] = &value;
  }
  template <class T>
  const T& get(std::string_view name) const {  // T as the key has it, in every configuration
    return *static_cast<const T*>(at_.at(std::string(name)));
  }

 private:
  std::map<std::string, const void*> at_;
};

// Puts these keys' values into a configuration.
class Taker {
 public:
  Taker(const Config& from, std::set<std::string> keys) : from_(from), keys_(std::move(keys)) {}
  void section(std::string_view) {}
  template <class T>
  void key(std::string_view name, T& value, std::string_view, const KeyOptions&) {
    if (keys_.contains(std::string(name))) value = from_.get<T>(name);
  }

 private:
  Members from_;
  std::set<std::string> keys_;
};

std::set<std::string> keys_given(const Config& config) {
  std::set<std::string> keys(config.given.begin(), config.given.end());
  for (const Change& change : changes_between(Config{}, config)) keys.insert(change.key);
  for (const char* not_of_the_run : {"resume", "resume_anyway"}) keys.erase(not_of_the_run);
  return keys;
}

bool is_same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

void refuse_beside_resume(const Config& given, const Config& of_run, const fs::path& run,
                          const std::set<std::string>& keys) {
  if (keys.contains("output") && given.output != of_run.output && !is_same_folder(given.output, run / ".."))
    throw_error<ConfigError>(
        "[train] resume goes on in the folder of {}, and output asks for '{}'; leave output out, or begin another run "
        "there with init_from={}",
        run.string(), given.output, run.string());
  if (keys.contains("init_from") && given.init_from != of_run.init_from)
    throw_error<ConfigError>(
        "[train] resume takes the weights of its checkpoint, and init_from asks for those of '{}'; leave one of them "
        "out",
        given.init_from);
}

}  // namespace

std::optional<Resumption> find_resumption(const Config& given, Purpose purpose) {
  if (given.resume.empty()) return {};
  if (given.resume == "auto") {
    for (const fs::path& run : runs_in(given.output))
      if (std::optional<Resumption> found = from_run(run, purpose)) return found;
    return {};
  }
  fs::path place = given.resume;
  if (!place.has_filename()) place = place.parent_path();  // "runs/7/"
  if (base::exists(place / "manifest.json")) return from_checkpoint(place, purpose);
  if (std::optional<Resumption> found = from_run(place, purpose)) return found;
  throw_error<ConfigError>(
      "[train] there is no whole checkpoint in '{}'; resume wants a run's folder or a checkpoint's", given.resume);
}

std::string config_of(const Resumption& found) {
  const fs::path file = found.run / "config.yaml";
  if (!base::exists(file))
    throw_error<ConfigError>(
        "[train] {} has no config.yaml, so it is not known what to go on with; begin another run from its weights with "
        "init_from={}",
        found.run.string(), found.run.string());
  const std::vector<std::byte> bytes = base::read_file(file);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Config gone_on_with(const Config& given, const Config& of_run, const fs::path& run) {
  std::set<std::string> keys = keys_given(given);
  refuse_beside_resume(given, of_run, run, keys);
  keys.insert({"num_gpus", "backend", "collective_timeout"});  // the job was started with them
  keys.erase("output");
  Config config = of_run;
  config.given = given.given;
  Taker taker(given, keys);
  visit_keys(config, taker);
  config.resume.clear();
  config.resume_anyway = false;
  if (keys.contains("epochs") && !keys.contains("steps")) config.steps.reset();  // whoever says epochs means epochs
  return config;
}

Config with_job_of_run(const Config& given) {
  const std::optional<Resumption> found = find_resumption(given, Purpose::look);
  if (!found) return given;
  const Config of_run = parse_config_of_run(config_of(*found), (found->run / "config.yaml").string());
  const std::set<std::string> keys = keys_given(given);
  Config config = given;
  if (!keys.contains("num_gpus")) config.num_gpus = of_run.num_gpus;
  if (!keys.contains("backend")) config.backend = of_run.backend;
  if (!keys.contains("collective_timeout")) config.collective_timeout = of_run.collective_timeout;
  return config;
}

std::vector<Change> changes_between(const Config& before, const Config& now) {
  const auto old = settings_of(before), current = settings_of(now);
  std::vector<Change> changes;
  for (size_t i = 0; i < old.size(); ++i)
    if (old[i].second != current[i].second) changes.push_back({old[i].first, old[i].second, current[i].second});
  return changes;
}

std::string in_words(const std::vector<Change>& changes) {
  std::vector<std::string> words;
  for (const Change& change : changes)
    words.push_back(fmt::format("{} {} → {}", change.key, change.before, change.now));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace bonfire::train
