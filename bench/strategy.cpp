// What each option of a strategy gains: training as `bonfire train` does it, with all of them off, then with one at a
// time on, in turns.
//
//   bench_strategy [CONFIG] [key=value …] [--nproc RANKS] [--rounds 5] [--steps 20] [--json FILE]
//
// Off is what the options mean where nothing is merged or fused (Paddle's defaults). A run is a process of its own, or
// as many as there are ranks: it takes `steps` steps to get going and measures as many after them. In every round each
// option is run once, so what the machine does besides hits all of them. Medians over the rounds are printed; a gain is
// the median of what an option has gained over the run without it in the same round. The first round warms up: it
// leaves its choice of kernels behind.

#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "bonfire/bonfire.h"
#include "bonfire/comm/environment.h"
#include "bonfire/launch/launcher.h"
#include "bonfire/train/config.h"
#include "bonfire/train/trainer.h"
#include "flags.h"
#include "measure.h"
#include "tests/support/scratch_folder.h"

namespace {

using namespace bonfire;
using Words = std::vector<std::string>;

struct Option {
  std::string key, off, on;
  bool between_ranks = false;  // has no meaning for one rank
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
    {"strategy.use_local_sgd", "false", "true", true},
};

struct Settings {
  Words config;  // a file and key=value settings
  int ranks = 1, rounds = 5, steps = 20;
  std::string json;
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
  std::vector<double> speeds = {};  // [round]
  std::string refusal = {};
};

bool is_key(const std::string& name) {
  for (const auto& [key, values] : train::config_keys())
    if (key == name) return true;
  return false;
}

// All off, each of them on, all on.
std::vector<Row> rows_of(const Settings& settings) {
  std::vector<Option> options;
  for (const Option& option : kOptions)
    if (is_key(option.key) && (settings.ranks > 1 || !option.between_ranks)) options.push_back(option);
  Words off, on;
  for (const Option& option : options) {
    off.push_back(option.key + "=" + option.off);
    if (option.key != "strategy.use_local_sgd") on.push_back(option.key + "=" + option.on);  // another way of training
  }
  std::vector<Row> rows{{"all off", off}};
  for (const Option& option : options) {
    rows.push_back({option.key + "=" + option.on, off});
    rows.back().strategy.push_back(rows.back().name);
  }
  rows.push_back({"all on, but for local SGD", on});
  if (settings.ranks == 1) rows.back().name = "all on";
  return rows;
}

double gain(const Row& row, const Row& off) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(row.speeds.size(), off.speeds.size()); ++i)
    ratios.push_back(row.speeds[i] / off.speeds[i]);
  return bench::median(ratios) - 1;
}

void measure(const Settings& settings, std::vector<Row>& rows) {
  for (int round = -1; round < settings.rounds; ++round)
    for (Row& row : rows) {
      if (!row.refusal.empty()) continue;
      if (isatty(STDERR_FILENO) != 0)
        std::fprintf(stderr, "round %d of %d: %-50s\r", round + 1, settings.rounds, row.name.c_str());
      try {
        const double found = speed(settings, row.strategy);
        if (round >= 0) row.speeds.push_back(found);
      } catch (const ConfigError& error) {
        if (&row == &rows[0]) throw;
        row.refusal = error.what();
      }
    }
}

nlohmann::json print(const Settings& settings, const std::vector<Row>& rows) {
  std::printf("%d rank%s, %d rounds of %d steps\n", settings.ranks, settings.ranks == 1 ? "" : "s", settings.rounds,
              settings.steps);
  std::printf("%-46s %12s %8s\n", "option", "samples/s", "gain");
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    if (!row.refusal.empty()) {
      std::printf("%-46s refused: %s\n", row.name.c_str(), row.refusal.c_str());
      list.push_back({{"option", row.name}, {"refused", row.refusal}});
      continue;
    }
    const double median = bench::median(row.speeds), gained = gain(row, rows[0]);
    std::printf("%-46s %12.1f", row.name.c_str(), median);
    if (&row != &rows[0]) std::printf(" %+6.1f %%", 100 * gained);
    std::printf("\n");
    list.push_back({{"option", row.name}, {"samples_per_second", median}, {"gain", gained}});
  }
  return {{"ranks", settings.ranks}, {"rounds", settings.rounds}, {"steps", settings.steps}, {"rows", list}};
}

Settings parse(const Words& words) {
  Settings settings;
  Words flags;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      settings.config.push_back(words[i]);
      continue;
    }
    flags.push_back(words[i]);
    if (i + 1 < words.size()) flags.push_back(words[++i]);
  }
  int ranks = 0;
  std::string file;
  bench::read_flags("bench_strategy", flags,
                    {{"--nproc", &ranks},
                     {"--rounds", &settings.rounds},
                     {"--steps", &settings.steps},
                     {"--config", &file},
                     {"--json", &settings.json}});
  if (!file.empty()) settings.config.insert(settings.config.begin(), file);
  settings.ranks = ranks > 0 ? ranks : static_cast<int>(read(settings.config).num_gpus);
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  try {
    if (!words.empty() && words[0] == "--run") return run_once({words.begin() + 1, words.end()});
    const Settings settings = parse(words);
    std::vector<Row> rows = rows_of(settings);
    measure(settings, rows);
    const nlohmann::json found = print(settings, rows);
    if (!settings.json.empty()) std::ofstream(settings.json) << found.dump(1) << "\n";
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
