#include <csignal>

#include "bonfire/base/error.h"
#include "bonfire/comm/environment.h"
#include "bonfire/train/trainer.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

// Once: finish the step, save, leave. Twice: at once.
void on_stop_signal(int signal) {
  train::Trainer::request_stop();
  std::signal(signal, SIG_DFL);
}

struct Wanted {
  std::vector<std::string> settings;
  std::string trace;
  int64_t ranks = 1;
};

// Ranks that know nothing of each other would all train the same and write over each other's files.
void refuse_to_be_one_of_many() {
  if (int world = comm::read_environment().world; world > 1)
    throw_error<ConfigError>(
        "[train] this was started as one of {} ranks, and training on several is not built yet; start it once, by "
        "itself",
        world);
}

int run(const Wanted& wanted) {
  refuse_to_be_one_of_many();
  const std::vector<std::string>& settings = wanted.settings;
  std::vector<std::string> overrides = settings;
  bool has_file = !settings.empty() && settings[0].find('=') == std::string::npos;
  if (has_file) overrides.erase(overrides.begin());
  if (wanted.ranks != 1) overrides.push_back("num_gpus=" + std::to_string(wanted.ranks));
  train::Config config = has_file ? train::load_config(settings[0], overrides) : train::default_config(overrides);
  std::signal(SIGINT, on_stop_signal);
  std::signal(SIGTERM, on_stop_signal);
  train::Trainer trainer(std::move(config));
  trainer.add(train::terminal_reporter());
  trainer.add(train::metrics_log());
  trainer.add(train::tensorboard_log());
  trainer.add(train::report_page());
  if (!wanted.trace.empty()) trainer.trace_to(wanted.trace);
  return trainer.run().interrupted ? 130 : 0;
}

}  // namespace

void add_train(Command program) {
  Command command = program.add(
      "train", "Trains a model",
      "bonfire train                                      a small CNN on drawn digits, about a minute\n"
      "bonfire train lr=0.05 epochs=5 output=/tmp/runs    with other settings: `bonfire config` lists them\n"
      "bonfire train data=FOLDER model=resnet18_small     on MNIST's or CIFAR's files, pictures, record shards\n"
      "bonfire train configs/mnist.yaml resume=auto       settings from a file; go on where the last run stopped\n"
      "bonfire train steps=100 --trace trace.json         a timeline of every node, the data and the checkpoints");
  auto wanted = std::make_shared<Wanted>();
  command.arguments("settings", wanted->settings, "a YAML file, then key=value settings that win over it");
  command.option("--trace", wanted->trace, "write what happened when to this file, for ui.perfetto.dev");
  command.option("--nproc", wanted->ranks, "processes to start on this machine, as num_gpus=N says");
  command.runs([wanted] { return run(*wanted); });
}

}  // namespace bonfire::tools
