// A model in stages: each rank along the pipeline axis has all of a batch, one stage of the model, and all results.
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/nn/weights_checksum.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/optim/optimizer_state.h"
#include "bonfire/parallel/gather.h"
#include "bonfire/parallel/pipeline/saying_where.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

bool Trainer::State::in_stages() { return fleet::mesh().size(Axis::pipeline) > 1; }

// Which module is where must be known before anything is loaded: a rank has memory for its own stage alone.
void Trainer::State::make_stages() {
  if (!in_stages()) return;
  auto forward = [this](std::span<const Tensor> batch) -> std::vector<Tensor> {
    const Outputs outputs = model->outputs(task().input(batch[0]));
    std::vector<Tensor> results{task().loss(outputs, batch[1])};
    for (Tensor& sum : task().training_sums(outputs, batch[1])) results.push_back(std::move(sum));
    sums_of_a_step = results.size() - 1;
    if (Tensor targets = task().targets(batch[1]); targets.defined()) results.push_back(std::move(targets));
    return results;
  };
  stages = std::make_unique<pipeline::Pipeline>(
      *model, *optimizer, forward,
      pipeline::PipelineOptions{.micro_batches = micro_batches_of(config, fleet::mesh().size(Axis::pipeline)),
                                .schedule = pipeline::parse_schedule(config.pipeline.schedule),
                                .chunks = static_cast<int>(chunks_of(config)),
                                .cut = chosen_cut(),
                                .clip_grad_norm = config.clip_grad_norm});
  model->train();
  stages->prepare(specs_of_batch());
  const std::vector<std::string>& firsts = stages->cut()->firsts();
  for (size_t own = static_cast<size_t>(stages->rank()); own <= firsts.size();
       own += static_cast<size_t>(fleet::mesh().size(Axis::pipeline)))
    base::log_info("[pipeline] stage {} of {}{}{}", own, firsts.size() + 1,
                   own == 0 ? "" : ", from " + firsts[own - 1] + " on",
                   own == firsts.size() ? "" : ", until " + firsts[own]);
  if (const auto& cut = stages->balanced(); cut && !cut->firsts.empty())
    note(fmt::format("the model is cut before {}, {}", fmt::join(cut->firsts, ", "), pipeline::to_string(*cut)));
  for (const auto& [name, variable] : model->state_dict())
    if (stages->holds(variable) || stages->owns(variable)) held.insert(&variable.state());
  for (const Parameter& parameter : model->parameters())
    if (holds(parameter))
      for (const auto& [name, state] : optimizer->state_of(parameter)) held.insert(&state.state());
  for (const Variable& counts : optimizer->counts()) held.insert(&counts.state());
  if (config.check_replicas && replicas_of_model() > 1)
    replicas.emplace(held_of(fleet::replicated(*model, *optimizer)));
  begin_with_own_weights();
}

void Trainer::State::begin_with_own_weights() {
  const auto is_held = [this](const Variable& one) { return holds(one); };
  if (!goes_on) require_same_first_weights();
  if (!config.init_from.empty() && !goes_on) {
    const nn::LoadReport report = nn::load_state_dict(model->state_dict(), open_tensors(weights_in(config.init_from)),
                                                      {.strict = config.strict, .only = is_held});
    if (!report.complete()) note(to_string(report));
  }
  if (!config.ema_decay) return;
  average.emplace(*model, *optimizer, *config.ema_decay, is_held);
  const nn::StateDict all = model->state_dict();
  for (size_t i = 0; i < all.size(); ++i)
    if (holds(all[i].variable)) held.insert(&average->state()[i].variable.state());
}

bool Trainer::State::holds(const Variable& variable) const { return !stages || held.contains(&variable.state()); }

nn::StateDict Trainer::State::held_of(nn::StateDict all) const {
  std::erase_if(all, [this](const nn::NamedVariable& named) { return !holds(named.variable); });
  return all;
}

RunEnds Trainer::State::train_all_in_stages() {
  RunEnds end;
  auto place = [this] {
    return fmt::format("[pipeline] {}, between two schedules, after step {}", stages->name(), step);
  };
  pipeline::saying_where(place, [&] { end = train_all(); });
  return end;
}

// Losses are means over the targets of their micro-batch, and so are the results' over those of the batch.
std::vector<Tensor> Trainer::State::train_in_stages(const Taken& taken) {
  const Tensor &input = taken.batch.input, &label = taken.batch.label;
  std::vector<double> shares;
  double all = 0;
  int64_t begin = 0;
  for (int64_t rows : stages->rows_of(input.size(0))) {
    const std::optional<int64_t> counted = count_targets_of(label, begin, rows);
    shares.push_back(static_cast<double>(counted.value_or(rows)));
    all += shares.back();
    begin += rows;
  }
  for (double& share : shares) share = all == 0 ? 0 : share / all;
  std::vector<double> weights;
  for (double share : shares) weights.push_back(share * weight.get());
  const std::vector<Tensor> lists = stages->train({{input, label}}, weights);
  const uint64_t next = StepContext::current().random.step;
  NoGrad no_grad;
  std::vector<Tensor> results;
  for (const Tensor& list : lists) {
    const auto count = static_cast<int64_t>(shares.size());
    results.push_back(results.empty() ? sum(list * Tensor::from<double>(shares, {count}, list.device())) : sum(list));
  }
  commit();
  StepContext::current().random.step = next;  // adding up is no step
  return results;
}

std::optional<int64_t> Trainer::State::count_targets_of(const Tensor& label, int64_t begin, int64_t rows) const {
  const RandomState before = StepContext::current().random;
  NoGrad no_grad;
  const Tensor part = slice(label, 0, begin, begin + rows);
  const std::optional<int64_t> counted = count_targets(part);
  StepContext::current().random = before;
  return counted;
}

Trainer::State::Evaluated Trainer::State::evaluate_batch(const Tensor& input, const Tensor& label) const {
  const Outputs outputs = model->outputs(task().input(input));
  return {.outputs = outputs,
          .loss = task().loss(outputs, label),
          .targets = task().targets(label),
          .sums = task().sums(outputs, label)};
}

// The same from all stages.
Trainer::State::Evaluator Trainer::State::evaluator() const {
  if (!stages) return [this](const Tensor& input, const Tensor& label) { return evaluate_batch(input, label); };
  struct Sizes {
    size_t sums = 0;
    bool counts = false;
  };
  auto sizes = std::make_shared<Sizes>();
  auto forward = [this, sizes](std::span<const Tensor> batch) -> std::vector<Tensor> {
    Evaluated one = evaluate_batch(batch[0], batch[1]);
    *sizes = {.sums = one.sums.size(), .counts = one.targets.defined()};
    std::vector<Tensor> results{std::move(one.loss)};
    if (one.targets.defined()) results.push_back(std::move(one.targets));
    results.insert(results.end(), one.sums.begin(), one.sums.end());
    results.insert(results.end(), one.outputs.begin(), one.outputs.end());
    return results;
  };
  auto staged = std::make_shared<pipeline::PipelinedForward>(forward, stages->cut(), place);
  return [staged, sizes](const Tensor& input, const Tensor& label) -> Evaluated {
    const std::vector<Tensor> results = (*staged)({{input, label}});
    Evaluated one{.outputs = {}, .loss = results[0], .targets = {}, .sums = {}};
    auto next = results.begin() + 1;
    if (sizes->counts) one.targets = *next++;
    one.sums.assign(next, next + static_cast<std::ptrdiff_t>(sizes->sums));
    one.outputs.assign(next + static_cast<std::ptrdiff_t>(sizes->sums), results.end());
    return one;
  };
}

// Each stage what it evaluates with.
void Trainer::State::load_best_of_stage(nn::OtherValues& best) const {
  const nn::StateDict own = model->state_dict();
  std::set<const VariableState*> wanted;
  for (size_t i = 0; i < own.size(); ++i)
    if (holds(own[i].variable)) wanted.insert(&best.state()[i].variable.state());
  // It is there once the first rank says where.
  const std::filesystem::path file = text_of_first_rank((folder / "best.safetensors").string());
  nn::load_state_dict(best.state(), file, {.only = [&](const Variable& one) { return wanted.contains(&one.state()); }});
}

// Each stage counts the updates of its own parameters.
void Trainer::State::share_counts() const {
  for (const Variable& counts : optimizer->counts()) {
    std::vector<std::byte> bytes = counts.save();
    fleet::group(Axis::pipeline)
        .all_reduce({bytes.data(), bytes.size() / sizeof(int64_t), DType::i64}, comm::Reduce::max);
    counts.load(bytes);
  }
}

namespace {

// Of a stage's variable that ranks along the tensor axis share out, all of it. A collective call of theirs.
std::vector<std::byte> whole_in_stage(const Variable& variable) {
  if (variable.slice().is_all()) return variable.save();
  return fleet::gather(fleet::group(Axis::tensor), variable.name(), variable.dtype(), variable.slice(),
                       variable.save_stored());
}

}  // namespace

// All weights, or their running mean, as one file of the first rank; each from the first stage that has it. A
// collective call.
void Trainer::State::save_from_stages(const WeightsFile& file) const {
  std::deque<std::vector<std::byte>> memory;
  std::vector<nn::TensorEntry> entries;
  const nn::StateDict weights = model->state_dict(), &saved = average ? average->state() : weights;
  for (size_t i = 0; i < saved.size(); ++i) {
    const auto& [name, variable] = saved[i];
    std::vector<std::byte> bytes(variable.spec().bytes());
    const int owner = stages->owner_of(weights[i].variable);
    if (owner == stages->rank()) bytes = whole_in_stage(variable);
    fleet::group(Axis::pipeline).broadcast({bytes.data(), bytes.size(), DType::u8}, owner);
    if (!is_first_rank()) continue;
    const std::vector<std::byte>& kept = memory.emplace_back(std::move(bytes));
    entries.push_back({name, variable.dtype(), variable.shape(), kept});
  }
  if (is_first_rank()) nn::write_safetensors(file.path, entries, nn::with_checksum(entries, file.metadata));
}

}  // namespace bonfire::train
