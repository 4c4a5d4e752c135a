#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/tasks/known_tasks.h"
#include "bonfire/train/trainer.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct EvalWanted {
  std::string run;
  std::vector<std::string> settings;
  bool json = false;
};

int run_eval(const EvalWanted& wanted) {
  const std::filesystem::path folder = wanted.run;
  train::require_known_task(folder);
  train::Trainer trainer(train::load_config(folder / "config.yaml", wanted.settings));
  const std::filesystem::path weights = train::weights_in(folder);
  train::EvaluationReport report = trainer.evaluate(weights);
  if (wanted.json) {
    std::string numbers = fmt::format("\"loss\": {:.9g}", report.loss);
    for (const train::Score& one : report.scores)
      numbers += fmt::format(", \"{}\": {:.9g}", one.metric.name, one.value);
    std::printf("{%s}\n", numbers.c_str());
  } else {
    std::printf("%s: test %s\n", weights.c_str(), in_words(report).c_str());
  }
  return 0;
}

}  // namespace

void add_eval(Command program) {
  Command command = program.add(
      "eval", "Evaluates the best weights of a run, or those of its newest checkpoint, on its test data",
      "bonfire eval runs/1                 loss and metrics of its task (top-1 and top-5) on the test images\n"
      "bonfire eval runs/1 data=FOLDER     on other images of the same kind\n"
      "bonfire eval runs/1 --json          {\"loss\": ..., \"top1\": ..., \"top5\": ...}");
  auto wanted = std::make_shared<EvalWanted>();
  command.argument("run", wanted->run, "the run's folder");
  command.arguments("settings", wanted->settings, "key=value settings that win over the run's own");
  command.option("--json", wanted->json, "print one JSON object");
  command.runs([wanted] { return run_eval(*wanted); });
}

}  // namespace bonfire::tools
