#include "bonfire/train/report/stages_table.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/loss.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/pipeline/balanced_cut.h"
#include "bonfire/parallel/pipeline/forward_stages.h"
#include "bonfire/parallel/pipeline/simulator.h"
#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

pipeline::BalancedCut cut_of(const StepSubject& subject, const Config& config) {
  const optim::Momentum optimizer(subject.model.parameters(), {.lr = 0.01});
  const fleet::detail::DistributedWhile distributed(optimizer, config.strategy);
  Trace trace;
  const TraceScope scope(trace);
  const Tensor logits = subject.model(subject.input);
  const Tensor loss = subject.loss ? subject.loss(logits, subject.target) : cross_entropy(logits, subject.target);
  loss.backward();
  const Value live[] = {loss.value()};
  const std::unique_ptr<Graph> graph = Graph::from_trace(trace, live);
  const pipeline::BalanceOptions options{
      .stages = static_cast<int>(config.mesh.pipeline * chunks_of(config)),
      .chunks = static_cast<int>(chunks_of(config)),
      .schedule = pipeline::parse_schedule(config.pipeline.schedule),
      .micro_batches = static_cast<int>(micro_batches_of(config, config.mesh.pipeline)),
      .firsts = config.pipeline.cut};
  if (options.firsts) pipeline::ForwardStages(*graph, {.stages = options.stages, .firsts = *options.firsts});
  const pipeline::StepCosts costs = pipeline::costs_of(*graph, StepContext::current().options);
  return pipeline::balance_stages(*graph, costs, options);
}

}  // namespace

int64_t rows_of_micro_batch(const Config& config) {
  const int64_t parts = micro_batches_of(config, config.mesh.pipeline);
  if (parts > config.batch_size)
    throw_error<ConfigError>("[inspect] pipeline.micro_batches is {}, and batch_size {}; expected at most that", parts,
                             config.batch_size);
  return (config.batch_size + parts - 1) / parts;
}

std::string stages_table(const StepSubject& subject, const Config& config) {
  if (config.mesh.pipeline < 2)
    throw_error<ConfigError>("[inspect] a model has a schedule in stages; say how many: mesh.pipeline=2");
  const pipeline::BalancedCut cut = cut_of(subject, config);
  size_t width = 5;
  for (const std::string& first : cut.firsts) width = std::max(width, first.size());
  double all = 0;
  for (const pipeline::StageLoad& load : cut.loads) all += load.cost;
  std::string text = fmt::format("stage  {:<{}}  {:>9}  {:>6}  memory\n", "begins", width, "a part", "share");
  for (size_t stage = 0; stage < cut.loads.size(); ++stage) {
    const pipeline::StageLoad& load = cut.loads[stage];
    const std::string time = cut.measured ? fmt::format("{:.2f} ms", 1e3 * load.cost) : "-";
    text += fmt::format("{:<5}  {:<{}}  {:>9}  {:>6}  {}\n", stage, stage == 0 ? "" : cut.firsts[stage - 1], width,
                        time, whole_percent(all > 0 ? load.cost / all : 0), byte_text(load.bytes));
  }
  text += fmt::format(
      "{}: pipeline.cut=[{}]; {}\nmemory: parameters, their gradients, and what is kept of micro-batches\n\n",
      config.pipeline.cut ? "as was said" : "the stages are most alike so", fmt::join(cut.firsts, ", "),
      pipeline::to_string(cut));
  if (config.mesh.tensor > 1)
    text +=
        fmt::format("of layers that {} ranks along the tensor axis share, times and memory are all ranks' together\n\n",
                    config.mesh.tensor);
  return text + pipeline::to_string(pipeline::make_schedule(
                    {.kind = pipeline::parse_schedule(config.pipeline.schedule),
                     .stages = static_cast<int>(config.mesh.pipeline),
                     .micro_batches = static_cast<int>(micro_batches_of(config, config.mesh.pipeline)),
                     .chunks = static_cast<int>(chunks_of(config))}));
}

}  // namespace bonfire::train
