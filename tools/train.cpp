#include <fmt/format.h>

#include <memory>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/comm/environment.h"
#include "bonfire/launch/launcher.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/train/checkpoint/resume.h"
#include "bonfire/train/report/reporter.h"
#include "bonfire/train/trainer.h"
#include "bonfire/train/trainer/stop_signals.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct TrainWanted {
  std::vector<std::string> settings;  // the first may be a file
  std::string config;                 // the same file, as other programs take it
  std::string trace;
  std::string ranks;  // empty: as num_gpus says
  bool trace_samples = false;
};

// This program again, as each of the ranks.
int start_ranks(const TrainWanted& wanted, const train::Config& config) {
  std::vector<std::string> arguments{"train"};
  arguments.insert(arguments.end(), wanted.settings.begin(), wanted.settings.end());
  arguments.push_back("num_gpus=" + std::to_string(config.num_gpus));
  if (!config.resume.empty()) {  // they may be the run's
    arguments.push_back("backend=" + config.backend);
    arguments.push_back(fmt::format("collective_timeout={}", config.collective_timeout));
  }
  if (!wanted.trace.empty()) arguments.insert(arguments.end(), {"--trace", wanted.trace});
  if (wanted.trace_samples) arguments.emplace_back("--trace-samples");
  return launch::launch(
      {.program = launch::own_program(), .arguments = arguments, .ranks = static_cast<int>(config.num_gpus)});
}

int train(train::Config config, const TrainWanted& wanted) {
  train::Trainer trainer(std::move(config));
  trainer.add(train::stop_signals(fleet::rank() == 0));
  trainer.add(train::terminal_reporter());
  trainer.add(train::metrics_log());
  trainer.add(train::tensorboard_log());
  trainer.add(train::report_page());
  if (!wanted.trace.empty() && fleet::rank() == 0) trainer.trace_to(wanted.trace);
  if (wanted.trace_samples) trainer.trace_samples();
  return trainer.run().interrupted ? 130 : 0;
}

int train_as_rank(train::Config config, const TrainWanted& wanted) try {
  fleet::init({.backend = config.backend, .collective_timeout = config.collective_timeout});
  int code = train(std::move(config), wanted);
  fleet::leave();
  return code;
} catch (const std::exception& error) {
  if (launch::exit_status_of(error) != launch::kLostPeer) throw;
  base::print_failure(fmt::format("bonfire: {}", error.what()));  // another rank is to blame
  return launch::kLostPeer;
}

bool begins_with_file(const std::vector<std::string>& settings) {
  return !settings.empty() && settings[0].find('=') == std::string::npos;
}

int run_train(TrainWanted wanted) {
  std::vector<std::string>& settings = wanted.settings;
  if (!wanted.config.empty()) {
    if (begins_with_file(settings))
      throw_error<ConfigError>("[train] two files, '{}' and --config {}; one may `include:` the other", settings[0],
                               wanted.config);
    settings.insert(settings.begin(), wanted.config);
  }
  const bool has_file = begins_with_file(settings);
  std::vector<std::string> overrides(settings.begin() + (has_file ? 1 : 0), settings.end());
  if (!wanted.ranks.empty()) overrides.push_back("num_gpus=" + wanted.ranks);
  train::Config config = has_file ? train::load_config(settings[0], overrides) : train::default_config(overrides);
  train::places_of(config);  // what cannot be is said before ranks are started

  comm::Environment self = comm::read_environment();
  bool started = self.starter == comm::Starter::bonfire || self.world > 1;  // as a rank, by somebody
  if (!started && !config.resume.empty()) config = train::with_job_of_run(config);
  if (!started && config.num_gpus > 1) return start_ranks(wanted, config);
  if (!started) return train(std::move(config), wanted);
  if (config.num_gpus > 1 && config.num_gpus != self.local_world)
    throw_error<ConfigError>(
        "[train] num_gpus is {}, but whoever started this chose {} ranks on this host; leave it out, or add num_gpus=1",
        config.num_gpus, self.local_world);
  return train_as_rank(std::move(config), wanted);
}

}  // namespace

void add_train(Command program) {
  Command command = program.add(
      "train", "Trains a model",
      "bonfire train                                      a small CNN on drawn digits, about a minute\n"
      "bonfire train lr=0.05 epochs=5 output=/tmp/runs    with other settings: `bonfire config` lists them\n"
      "bonfire train data=FOLDER model=resnet18_small     on MNIST's or CIFAR's files, pictures, record shards\n"
      "bonfire train configs/two_headed.yaml              what is in an image and where; lstm_classifier.yaml: classes "
      "of sequences\n"
      "bonfire train configs/mnist.yaml resume=auto       settings from a file; go on where the last run stopped\n"
      "bonfire train --config configs/mnist.yaml          the same file, as other programs take it\n"
      "bonfire train --nproc 2                            on two ranks of this machine, batch_size on each\n"
      "bonfire train place=cpu:0,cpu:1                    on two devices of one process, batch_size on both together\n"
      "bonfire train steps=100 --trace trace.json         a timeline of every node, the data and the checkpoints");
  auto wanted = std::make_shared<TrainWanted>();
  command.arguments("settings", wanted->settings, "a YAML file, then key=value settings that win over it");
  command.option("--config", wanted->config, "the YAML file, where that is not the first argument");
  command.option("--trace", wanted->trace, "write what happened when to this file, for ui.perfetto.dev");
  command.option("--trace-samples", wanted->trace_samples,
                 "each rank writes which samples it reads, for `inspect samples`");
  command.option("--nproc", wanted->ranks, "ranks to start on this machine, as num_gpus=N says");
  command.runs([wanted] { return run_train(*wanted); });
}

}  // namespace bonfire::tools
