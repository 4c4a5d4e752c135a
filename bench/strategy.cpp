// What each option of a strategy gains: training as `bonfire train` does it, with all of them off, then with one at a
// time on, in turns.
//
//   bench_strategy [CONFIG] [key=value …] [--nproc RANKS] [--rounds 5] [--steps 50] [--only use_amp,…] [--json FILE]
//
// Off is what the options mean where nothing is merged or fused (Paddle's defaults). A run is a process of its own, or
// as many as there are ranks: it takes `steps` steps to get going and measures as many after them. Every run with an
// option comes directly after one without, and is compared with that one: what the machine does besides changes within
// seconds. Medians over the rounds are printed. The first round warms up: it records its choice of kernels.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "bonfire/bonfire.h"
#include "bonfire/comm/environment.h"
#include "bonfire/launch/launcher.h"
#include "bonfire/train/config/config.h"
#include "bonfire/train/trainer.h"
#include "measure.h"
#include "tests/support/scratch_folder.h"

namespace {

using namespace bonfire;
using Words = std::vector<std::string>;

struct Option {
  std::string key, off, on;
  bool between_ranks = false;  // has no meaning for one rank
  bool alone = false;          // another way of training: not among those that are on together
};

const Option kOptions[] = {
    {"strategy.fuse_bn_act_ops", "false", "true"},
    {"strategy.fuse_elewise_add_act_ops", "false", "true"},
    {"strategy.use_amp", "false", "true"},
    {"strategy.num_threads", "1", "2"},
    {"strategy.num_iteration_per_drop_scope", "1", "100"},
    {"strategy.fetch_frequency", "1", "10"},
    {"strategy.fast_math", "false", "true"},
    {"strategy.fuse_all_reduce_ops", "false", "true", true},
    {"strategy.nccl_comm_num", "1", "2", true},
    {"strategy.use_local_sgd", "false", "true", true, true},
    {"strategy.sharding", "off", "optimizer", true, true},
    {"strategy.sharding", "off", "gradients", true, true},
    {"strategy.sharding", "off", "parameters", true, true},
};

struct Settings {
  Words config;  // a file and key=value settings
  int ranks = 1, rounds = 5, steps = 50;
  std::string json;
  Words only;  // options; empty: all
};

train::Config read(const Words& words) {
  const bool has_file = !words.empty() && words[0].find('=') == std::string::npos;
  const Words overrides(words.begin() + (has_file ? 1 : 0), words.end());
  return has_file ? train::load_config(words[0], overrides) : train::default_config(overrides);
}

// --- one run -------------------------------------------------------------------------------------------------------

// Ends a run when it has been told of steps twice, and prints the samples of all ranks a second between the two.
class Stopwatch final : public train::Reporter {
 public:
  void begin(const train::RunBegins& run) override { samples_ = static_cast<double>(run.batch_size * run.ranks); }
  void step(const train::StepReport& report) override {
    if (++told_ == 1) {
      first_ = report.step;
      begin_ = bench::Clock::now();
    } else if (told_ == 2) {
      const double taken = bench::seconds(bench::Clock::now() - begin_);
      std::printf("measured %f\n", samples_ * static_cast<double>(report.step - first_) / taken);
      std::fflush(stdout);
      train::Trainer::request_stop();
    }
  }
  void evaluated(const train::EvaluationReport&) override {}
  void note(const std::string&) override {}
  void end(const train::RunEnds&) override {}

 private:
  double samples_ = 0;  // of a step
  int told_ = 0;
  int64_t first_ = 0;
  bench::Clock::time_point begin_;
};

int run_once(const Words& words) {
  train::Config config = read(words);
  if (comm::read_environment().world > 1)
    fleet::init({.backend = config.backend, .collective_timeout = config.collective_timeout});
  train::Trainer trainer(config);
  trainer.add(std::make_unique<Stopwatch>());
  trainer.run();
  fleet::leave();
  return 0;
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Samples a second of a run with these settings. ConfigError with what it says where it fails.
double speed(const Settings& settings, const Words& strategy) {
  bonfire::testing::ScratchFolder folder;
  Words words = settings.config;
  words.insert(words.end(), strategy.begin(), strategy.end());
  const std::string never = "1000000000";
  for (const std::string& more :
       Words{"output=" + folder.path().string(), "log_freq=" + std::to_string(settings.steps), "steps=" + never,
             "eval_freq=" + never, "save_freq=" + never, "early_stop=off", "resume="})
    words.push_back(more);
  const std::filesystem::path self = launch::own_program();
  std::string command;
  if (settings.ranks > 1)
    command = quoted((self.parent_path() / "bonfire").string()) + " launch --nproc_per_node " +
              std::to_string(settings.ranks) + " ";
  command += quoted(self.string()) + " --run";
  for (const std::string& word : words) command += " " + quoted(word);
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char line[4096];
  std::string said;
  double found = 0;
  while (pipe != nullptr && fgets(line, sizeof line, pipe) != nullptr) {
    const std::string text = line;
    const size_t at = text.find("measured ");
    if (at != std::string::npos) found = std::stod(text.substr(at + 9));
    if (text.find_first_not_of(" \n") != std::string::npos && said.empty()) said = text.substr(0, text.find('\n'));
  }
  if (pipe != nullptr) pclose(pipe);
  if (found <= 0) throw_error<ConfigError>("{}", said.empty() ? "the run has ended without a word" : said);
  return found;
}

// --- all of them ---------------------------------------------------------------------------------------------------

struct Row {
  std::string name;
  Words strategy;
  std::vector<double> speeds = {}, before = {};  // [round]; before: of the run without it that came first
  std::string refusal = {};
};

bool is_key(const std::string& name) {
  for (const auto& [key, values] : train::config_keys())
    if (key == name) return true;
  return false;
}

// Each of them on, then all.
std::vector<Row> rows_of(const std::vector<Option>& options, const Words& off) {
  std::vector<Row> rows;
  Words on;
  for (const Option& option : options) {
    rows.push_back({option.key + "=" + option.on, off});
    rows.back().strategy.push_back(rows.back().name);
    if (!option.alone) on.push_back(rows.back().name);
  }
  if (!on.empty())
    rows.push_back({on.size() == options.size() ? "all on" : "all on, but for local SGD and sharding", on});
  return rows;
}

std::vector<double> measure(const Settings& settings, const Words& off, std::vector<Row>& rows) {
  std::vector<double> without;
  for (int round = -1; round < settings.rounds; ++round)
    for (Row& row : rows) {
      if (!row.refusal.empty()) continue;
      if (isatty(STDERR_FILENO) != 0)
        std::fprintf(stderr, "round %d of %d: %-50s\r", round + 1, settings.rounds, row.name.c_str());
      const double before = speed(settings, off);
      try {
        const double found = speed(settings, row.strategy);
        if (round < 0) continue;
        row.speeds.push_back(found);
        row.before.push_back(before);
        without.push_back(before);
      } catch (const ConfigError& error) {
        row.refusal = error.what();
      }
    }
  return without;
}

double gain(const Row& row) {
  std::vector<double> ratios;
  for (size_t i = 0; i < row.speeds.size(); ++i) ratios.push_back(row.speeds[i] / row.before[i]);
  return bench::median(ratios) - 1;
}

nlohmann::json print(const Settings& settings, double without, const std::vector<Row>& rows) {
  std::printf("%d rank%s, %d round%s of %d steps\n", settings.ranks, settings.ranks == 1 ? "" : "s", settings.rounds,
              settings.rounds == 1 ? "" : "s", settings.steps);
  std::printf("%-46s %12s %8s\n%-46s %12.1f\n", "option", "samples/s", "gain", "all off", without);
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    if (!row.refusal.empty()) {
      std::printf("%-46s refused: %s\n", row.name.c_str(), row.refusal.c_str());
      list.push_back({{"option", row.name}, {"refused", row.refusal}});
      continue;
    }
    const double median = bench::median(row.speeds), gained = gain(row);
    std::printf("%-46s %12.1f %+6.1f %%\n", row.name.c_str(), median, 100 * gained);
    list.push_back({{"option", row.name}, {"samples_per_second", median}, {"gain", gained}});
  }
  return {{"ranks", settings.ranks},
          {"rounds", settings.rounds},
          {"steps", settings.steps},
          {"rows", list},
          {"all_off_samples_per_second", without}};
}

// Those that this build has, that mean something for so many ranks, and that were asked for.
std::vector<Option> options_of(const Settings& settings) {
  std::vector<Option> options;
  std::string names;
  for (const Option& option : kOptions) {
    if (!is_key(option.key) || (settings.ranks == 1 && option.between_ranks)) continue;
    const std::string name = option.key.substr(option.key.find('.') + 1);
    if (!names.ends_with(name)) names += (names.empty() ? "" : ", ") + name;
    if (settings.only.empty() || std::ranges::find(settings.only, name) != settings.only.end())
      options.push_back(option);
  }
  if (!settings.only.empty() && options.size() < settings.only.size())
    throw_error<ConfigError>(
        "[bench_strategy] --only names an option that cannot be measured on {} rank(s); there are {}", settings.ranks,
        names);
  return options;
}

int bench_all(const Settings& settings) {
  const std::vector<Option> options = options_of(settings);
  Words off;
  for (const Option& option : options) off.push_back(option.key + "=" + option.off);
  std::vector<Row> rows = rows_of(options, off);
  const double without = bench::median(measure(settings, off, rows));
  const nlohmann::json found = print(settings, without, rows);
  if (!settings.json.empty()) std::ofstream(settings.json) << found.dump(1) << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  try {
    if (!words.empty() && words[0] == "--run") return run_once({words.begin() + 1, words.end()});
    Settings settings;
    int ranks = 0;
    std::string file;
    CLI::App flags("What each option of a strategy gains", "bench_strategy");
    flags.add_option("settings", settings.config, "a YAML file, then key=value settings that win over it");
    flags.add_option("--config", file, "the YAML file, where that is not the first argument");
    flags.add_option("--nproc", ranks, "ranks on this machine; else as num_gpus says")->check(CLI::PositiveNumber);
    flags.add_option("--rounds", settings.rounds, "runs of each option")->check(CLI::PositiveNumber);
    flags.add_option("--steps", settings.steps, "of a run")->check(CLI::PositiveNumber);
    flags.add_option("--only", settings.only, "options, separated by commas; else all")
        ->delimiter(',')
        ->allow_extra_args(false);
    flags.add_option("--json", settings.json, "a file for what was measured");
    CLI11_PARSE(flags, argc, argv);
    if (!file.empty()) settings.config.insert(settings.config.begin(), file);
    settings.ranks = ranks > 0 ? ranks : static_cast<int>(read(settings.config).num_gpus);
    return bench_all(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
