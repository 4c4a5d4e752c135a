#include <cstdio>
#include <cstdlib>
#include <memory>

#include "bonfire/base/error.h"
#include "bonfire/graph/graph.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/pipeline/simulator.h"
#include "bonfire/train/config/config.h"
#include "bonfire/train/report/describe.h"
#include "bonfire/train/report/model_table.h"
#include "bonfire/train/report/shards_table.h"
#include "bonfire/train/report/stages_table.h"
#include "bonfire/train/report/step_profile.h"
#include "bonfire/train/trainer.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct InspectWanted {
  std::string subject;
  std::vector<std::string> settings;
  int64_t steps = 12;
  bool dot = false, json = false, items = false;
  int64_t stages = 4, micro_batches = 8, chunks = 1;
  std::string schedule = "1f1b";
};

// A YAML file may come first.
train::Config config_of(const std::vector<std::string>& settings) {
  const bool has_file = !settings.empty() && settings[0].find('=') == std::string::npos;
  const std::span<const std::string> overrides = std::span(settings).subspan(has_file ? 1 : 0);
  return has_file ? train::load_config(settings[0], overrides) : train::default_config(overrides);
}

train::StepSubject subject_of(const train::Config& config, int64_t batch) {
  fleet::prepare_devices(config.strategy);
  return train::step_subject(config.model, {.batch = batch,
                                            .image_size = config.image_size,
                                            .classes = config.num_classes,
                                            .place = train::places_of(config)[0],
                                            .placement = config.placement});
}

std::string schedule_of(const InspectWanted& wanted) {
  constexpr int64_t kMost = 1024;
  for (int64_t number : {wanted.stages, wanted.micro_batches, wanted.chunks})
    if (number > kMost)
      throw_error<ConfigError>("[inspect] {} is too many to be printed, expected at most {}", number, kMost);
  const pipeline::Schedule table = pipeline::make_schedule({.kind = pipeline::parse_schedule(wanted.schedule),
                                                            .stages = static_cast<int>(wanted.stages),
                                                            .micro_batches = static_cast<int>(wanted.micro_batches),
                                                            .chunks = static_cast<int>(wanted.chunks)});
  return wanted.items ? pipeline::items_of(table) : pipeline::to_string(table);
}

// Of a model the settings say what it is.
void require_no_schedule_of_its_own(const InspectWanted& wanted) {
  const InspectWanted usual;
  if (wanted.stages != usual.stages || wanted.micro_batches != usual.micro_batches || wanted.chunks != usual.chunks ||
      wanted.schedule != usual.schedule || wanted.items)
    throw_error<ConfigError>(
        "[inspect] --stages, --micro-batches, --chunks, --schedule and --items are of a schedule without a model; with "
        "settings say mesh.pipeline=, pipeline.micro_batches=, pipeline.chunks= and pipeline.schedule=");
}

train::Description description_of(const InspectWanted& wanted) {
  if (wanted.subject == "samples") {
    if (wanted.settings.size() != 1)
      throw_error<ConfigError>("[inspect] samples wants a run or a checkpoint: inspect samples runs/1");
    return train::describe_samples(wanted.settings[0]);
  }
  if (wanted.subject == "shards") {
    const train::Config config = config_of(wanted.settings);
    return {train::shards_table(subject_of(config, config.batch_size), config)};
  }
  if (wanted.subject == "memory") {
    setenv("BONFIRE_TUNE", "cached", 0);  // nothing is run, kernels neither
    std::string text;
    for (const train::StepMemory& one : train::Trainer(config_of(wanted.settings)).memory())
      text += (text.empty() ? "" : "\n") + train::to_string(one);
    return {text};
  }
  if (wanted.subject == "schedule") {
    if (wanted.settings.empty()) return {schedule_of(wanted)};
    require_no_schedule_of_its_own(wanted);
    const train::Config config = config_of(wanted.settings);
    return {train::stages_table(subject_of(config, train::rows_of_micro_batch(config)), config)};
  }
  if (wanted.subject != "model" && wanted.subject != "graph" && wanted.subject != "plan") {
    if (!wanted.settings.empty())
      throw_error<ConfigError>(
          "[inspect] settings go with model, graph, plan, shards, memory and schedule, not with '{}'", wanted.subject);
    return train::describe(wanted.subject);
  }
  train::Config config = train::default_config(wanted.settings);
  if (wanted.subject == "model") {
    train::StepSubject one = subject_of(config, 1);
    return {train::to_string(train::model_table(one.model, one.input))};
  }
  train::StepSubject batch = subject_of(config, config.batch_size);
  train::ProfileOptions options{.steps = 0, .strategy = config.strategy};
  options.strategy.accumulate_steps = 1;  // one batch is looked at
  if (wanted.subject == "graph") {
    train::StepProfile compiled = train::profile_step(batch, options);
    return {wanted.dot ? print_graph_dot(*compiled.plan->graph) : print_graph(*compiled.plan->graph)};
  }
  if (wanted.steps < 1) throw_error<ConfigError>("[inspect] --steps is {}, expected at least 1", wanted.steps);
  options.steps = static_cast<int>(wanted.steps);
  train::StepProfile profile = train::profile_step(batch, options);
  return {wanted.json ? train::to_json(profile) : train::to_string(profile)};
}

}  // namespace

void add_inspect(Command program) {
  Command command = program.add(
      "inspect", "Says what is in a checkpoint, a data set, a model, a graph or a plan",
      "bonfire inspect runs/1                                  its newest whole checkpoint; exit code 1: one is "
      "damaged\n"
      "bonfire inspect runs/1/best.safetensors                 names, types and shapes of the weights\n"
      "bonfire inspect data/mnist                              images, classes, how many of each\n"
      "bonfire inspect samples runs/1                          whether each sample was trained on once an epoch; exit "
      "code 1: not\n"
      "bonfire inspect model model=resnet18                    layers, parameters, FLOPs, memory\n"
      "bonfire inspect graph model=lenet --dot | dot -Tsvg     the compiled training step, for Graphviz\n"
      "bonfire inspect plan model=resnet18_small batch_size=64 each node: kernel, layout, time, GFLOP/s, share\n"
      "bonfire inspect shards model=bert_mini mesh.tensor=2    what each of two ranks holds, and what they gather\n"
      "bonfire inspect memory model=resnet18 batch_size=128    what a step of a run needs, without running it\n"
      "bonfire inspect schedule --stages 4 --micro-batches 8   which stage of a pipeline does what when\n"
      "bonfire inspect schedule model=vgg11 mesh.pipeline=2    where that model is cut, and by what");
  auto wanted = std::make_shared<InspectWanted>();
  command.argument("subject", wanted->subject,
                   "a run, a checkpoint, a safetensors file, a folder of data; or samples, model, graph, plan, shards, "
                   "memory, schedule");
  command.arguments("settings", wanted->settings,
                    "of samples: the run; of model, graph, plan, shards, memory and schedule: model=, batch_size=, "
                    "strategy.use_amp= ...; shards, memory and schedule: a YAML file first");
  command.option("--dot", wanted->dot, "graph: as Graphviz reads it");
  command.option("--json", wanted->json, "plan: one JSON object");
  command.option("--steps", wanted->steps, "plan: steps to time (12)");
  command.option("--schedule", wanted->schedule, "schedule: gpipe, 1f1b, zero_bubble or interleaved (1f1b)");
  command.option("--stages", wanted->stages, "schedule: ranks along the pipeline (4)");
  command.option("--micro-batches", wanted->micro_batches, "schedule: of a step (8)");
  command.option("--chunks", wanted->chunks, "schedule: interleaved: stages on each rank (1)");
  command.option("--items", wanted->items, "schedule: every item of every stage, messages too");
  command.runs([wanted] {
    train::Description description = description_of(*wanted);
    std::fputs(description.text.c_str(), stdout);
    return description.damaged ? 1 : 0;
  });
}

}  // namespace bonfire::tools
