// The `bonfire` command: reads arguments, and leaves the work to the library.

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "bonfire/base/error.h"
#include "bonfire/tensor/device.h"
#include "bonfire/train/describe.h"
#include "bonfire/train/trainer.h"

namespace {

using namespace bonfire;

// Once: finish the step, save, leave. Twice: at once.
void on_stop_signal(int signal) {
  train::Trainer::request_stop();
  std::signal(signal, SIG_DFL);
}

int train_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> overrides = arguments;
  bool has_file = !arguments.empty() && arguments[0].find('=') == std::string::npos;
  if (has_file) overrides.erase(overrides.begin());
  train::Config config = has_file ? train::load_config(arguments[0], overrides) : train::default_config(overrides);
  std::signal(SIGINT, on_stop_signal);
  std::signal(SIGTERM, on_stop_signal);
  train::Trainer trainer(std::move(config));
  trainer.add(train::terminal_reporter());
  trainer.add(train::metrics_log());
  trainer.add(train::tensorboard_log());
  trainer.add(train::report_page());
  return trainer.run().interrupted ? 130 : 0;
}

int eval_command(const std::string& run, const std::vector<std::string>& overrides, bool as_json) {
  std::filesystem::path folder = run, weights = folder / "best.safetensors";
  train::Trainer trainer(train::load_config(folder / "config.yaml", overrides));
  train::EvaluationReport report = trainer.evaluate(weights);
  if (as_json) {
    std::printf("{\"loss\": %.9g, \"top1\": %.9g, \"top5\": %.9g}\n", report.loss, report.top1, report.top5);
  } else {
    std::printf("%s: test loss %.4f, top-1 %.2f %%, top-5 %.2f %%\n", weights.c_str(), report.loss, 100 * report.top1,
                100 * report.top5);
  }
  return 0;
}

int devices_command() {
  for (Device device : devices()) std::printf("%s\n", to_string(device).c_str());
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Bonfire trains neural networks in C++.");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  bonfire train                                  a small CNN on the data set that is built in\n"
      "  bonfire train lr=0.05 epochs=5                 with other settings\n"
      "  bonfire train data=FOLDER model=resnet18_small MNIST's or Fashion-MNIST's files\n"
      "  bonfire train configs/mnist.yaml resume=auto   settings from a file; go on where the last run stopped\n"
      "  bonfire eval runs/1                            the accuracy of a run's best weights\n"
      "  bonfire inspect runs/1                         what its newest checkpoint holds\n"
      "  bonfire config                                 every setting, its default and what it means");

  std::vector<std::string> arguments;
  CLI::App* train = app.add_subcommand("train", "Trains a model");
  train->add_option("settings", arguments, "a YAML file, then key=value settings that win over it");
  std::string subject;
  bool as_json = false;
  CLI::App* eval = app.add_subcommand("eval", "Evaluates the best weights of a run on its test data");
  eval->add_option("run", subject, "the run's folder")->required();
  eval->add_option("settings", arguments, "key=value settings that win over the run's own");
  eval->add_flag("--json", as_json, "print one JSON object");
  CLI::App* inspect = app.add_subcommand("inspect", "Says what is in a checkpoint or a safetensors file");
  inspect->add_option("path", subject, "a checkpoint's folder, a run's, or a safetensors file")->required();
  CLI::App* config = app.add_subcommand("config", "Prints every setting, its default and what it means");
  CLI::App* list = app.add_subcommand("devices", "Lists the devices of this machine");
  CLI::App* version = app.add_subcommand("version", "Prints the version");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (train->parsed()) return train_command(arguments);
  if (eval->parsed()) return eval_command(subject, arguments, as_json);
  if (inspect->parsed()) return std::printf("%s", train::describe(subject).c_str()) < 0 ? 1 : 0;
  if (config->parsed()) return std::printf("%s", train::config_reference().c_str()) < 0 ? 1 : 0;
  if (list->parsed()) return devices_command();
  if (version->parsed()) return std::printf("bonfire %s\n", BONFIRE_VERSION) < 0 ? 1 : 0;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "bonfire: %s\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bonfire: unexpected: %s\n", error.what());
    return 1;
  }
}
