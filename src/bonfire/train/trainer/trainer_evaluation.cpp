#include <set>

#include "bonfire/base/error.h"
#include "bonfire/parallel/strategies/sharding.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

namespace fs = std::filesystem;

// Of running statistics, which each rank keeps of its own samples, the first rank's are evaluated and saved.
void Trainer::State::share_buffers() const {
  if (fleet::world_size() == 1) return;
  std::set<const VariableState*> trained;
  for (const Parameter& parameter : model->parameters()) trained.insert(&parameter.state());
  nn::StateDict all = model->state_dict(), mean = average ? average->state() : nn::StateDict{}, buffers;
  for (size_t i = 0; i < all.size(); ++i) {
    if (trained.contains(&all[i].variable.state()) || !holds(all[i].variable)) continue;
    buffers.push_back(all[i]);
    if (average) buffers.push_back(mean[i]);
  }
  take_values_of_first_rank(buffers, stages ? std::optional(Axis::data) : std::nullopt);
}

// What the optimizer remembers and the running mean of weights too: a run that is resumed gives it to all ranks. Of
// stages each its own.
void Trainer::State::share_weights() {
  if (!local || !local->local()) return;
  std::vector<Variable> more;
  for (const auto& [name, variable] : optimizer->state())
    if (is_floating(variable.dtype()) && holds(variable)) more.push_back(variable);
  if (average) {
    std::set<std::string> trained;
    for (const auto& [name, parameter] : model->named_parameters()) trained.insert(name);
    for (const auto& [name, mean] : average->state())
      if (trained.contains(name) && holds(mean)) more.push_back(mean);
  }
  fleet::average(more);
}

EvaluationReport Trainer::State::measure(EvaluationReport::On on, int64_t epoch, const VariableCopies* values) const {
  NoGrad no_grad;
  share_buffers();
  std::optional<UseCopies> in_place;
  if (values != nullptr) in_place.emplace(*values);
  model->eval();
  const bool on_test = on == EvaluationReport::On::test;
  data::DataLoader& samples = on_test ? *test : *validation;
  EvaluationReport report{.on = on, .epoch = epoch + 1, .step = step};
  const std::unique_ptr<Judge> judge = task().judge(on_test ? *opened.test : *opened.validation);
  const bool of_mean = average && values == &average->copies();
  Evaluator evaluated = of_mean ? mean_evaluator : values == nullptr ? own_evaluator : Evaluator();
  if (!evaluated) evaluated = evaluator();
  if (of_mean) mean_evaluator = evaluated;
  if (values == nullptr) own_evaluator = evaluated;
  // Where ranks share out parameters all of them gather these for each batch, also those that have none.
  const fleet::DataSharding* sharding = fleet::sharding_of_job();
  const bool gathers = sharding != nullptr && sharding->level() == fleet::Sharded::parameters;
  double loss = 0;
  std::vector<double> sums;
  int64_t targets = 0, begin = 0;  // begin: of the batch, in samples
  for (int64_t batches = 0; const auto& [input, label] : samples.epoch(epoch)) {
    show(Progress::Doing::evaluating, epoch, batches++, samples.batches_per_epoch());
    const data::Share share = samples.share();
    Trace unused;  // of a stand-in, of which only the number of metrics is wanted
    std::optional<TraceScope> aside;
    const bool is_aside = share.own == 0 && !gathers;
    if (is_aside) aside.emplace(unused);
    // All of it is traced before anything is read, and so computed at once.
    const auto [outputs, mean_loss, counted, parts] = is_aside ? evaluate_batch(input, label) : evaluated(input, label);
    sums.resize(parts.size());
    if (share.own == 0 && gathers) mean_loss.item();
    if (share.own > 0) {
      std::vector<int64_t> indices;
      for (int64_t i = 0; i < share.own; ++i) indices.push_back(begin + share.place(i));
      if (judge) judge->add(outputs, label, indices);
      const int64_t count = counted.defined() ? static_cast<int64_t>(counted.item()) : share.own;
      if (count > 0) loss += mean_loss.item() * static_cast<double>(count);
      for (size_t i = 0; i < parts.size(); ++i) sums[i] += parts[i].item();
      targets += count;
    }
    begin += share.all;
  }
  add_over_data({&targets, 1});
  add_over_data({&loss, 1});
  add_over_data(sums);
  if (judge) judge->finish(report);
  model->train();
  const auto all = static_cast<double>(targets);
  report.loss = loss / all;
  report.scores = scores_of(task(), sums, all);
  return report;
}

bool Trainer::State::evaluate(int64_t epoch, bool ends_epoch) {
  Span span(timeline.get(), "training loop", "evaluate");
  EvaluationReport report =
      measure(validation ? EvaluationReport::On::validation : EvaluationReport::On::test, epoch, evaluated_values());
  report.ends_epoch = ends_epoch;
  span.end();
  last_score = report.headline();
  bool best = !best_score || headline_of(task()).is_better(*last_score, *best_score);
  if (best) {
    best_score = last_score;
    best_checkpoint = folder / "checkpoints" / checkpoint_name(step);
  }
  evaluations_without_gain = best ? 0 : evaluations_without_gain + 1;
  report.best = best;
  tell(&Reporter::evaluated, report);
  return !config.early_stop || evaluations_without_gain < *config.early_stop;
}

// Once, before the last checkpoint is saved. Where the best weights are not those at hand they are read beside those,
// so that the run can still go on from its last.
void Trainer::State::evaluate_best_on_test_data(int64_t epoch) {
  Span span(timeline.get(), "training loop", "evaluate on the test data");
  std::optional<nn::OtherValues> best;
  if (best_checkpoint.filename() != checkpoint_name(step)) {
    best.emplace(*model);
    if (writer) writer->finish();
    if (stages) {
      load_best_of_stage(*best);
    } else {
      // Ranks that hold parts read these themselves: they see one file system.
      if (is_first_rank() || writes_together)
        nn::load_state_dict(best->state(), open_tensors(folder / "best.safetensors"));
      take_values_of_first_rank(best->state());
    }
  }
  EvaluationReport report = measure(EvaluationReport::On::test, epoch, best ? &best->copies() : evaluated_values());
  span.end();
  report.best = true;
  report.ends_epoch = train->position().epoch != epoch;
  test_score = report.headline();
  tell(&Reporter::evaluated, report);
}

void Trainer::State::take_task_from(const fs::path& weights) {
  try {
    const auto trained = task().as_trained(open_tensors(weights).metadata());
    if (trained) opened.task = trained;
  } catch (const DataError& error) {
    throw_error<DataError>("{} ({}, on {})", error.what(), weights.string(), opened.title);
  }
}

EvaluationReport Trainer::evaluate(const fs::path& weights) {
  State& s = *state_;
  if (s.own)
    throw_error<ConfigError>(
        "[train] this trainer has a model of the program's own: say on which samples, evaluate(weights, samples)");
  return evaluate_as(weights, EvaluationReport::On::test);
}

EvaluationReport Trainer::evaluate_as(const fs::path& weights, EvaluationReport::On on) {
  State& s = *state_;
  const State::WhileDistributed scope{s};
  s.config.init_from.clear();
  s.config.ema_decay.reset();  // the weights are what they are
  s.prepare();
  nn::load_state_dict(s.model->state_dict(), open_tensors(weights),
                      {.only = [&](const Variable& one) { return s.holds(one); }});
  s.take_task_from(weights);
  return s.measure(on, 0, nullptr);
}

}  // namespace bonfire::train
