#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/optim/clip_grad.h"
#include "bonfire/optim/schedule.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/report/number_text.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

namespace {

// What each of several devices holds, once a step has been compiled.
std::string memory_in_words(const models::Model& model, const optim::Optimizer& optimizer) {
  std::map<Device, std::pair<size_t, size_t>> bytes;  // of variables, of temporaries
  std::set<const VariableState*> seen;
  auto count = [&](const Variable& variable) {
    if (seen.insert(&variable.state()).second) bytes[variable.device()].first += variable.stored_spec().bytes();
  };
  for (const auto& [name, variable] : model.state_dict()) count(variable);
  for (const Variable& parameter : optimizer.parameters()) count(parameter.grad_variable());
  for (const auto& [name, variable] : optimizer.state()) count(variable);
  for (auto& [device, own] : bytes)
    for (const auto& plan : runtime::cached_plans()) own.second = std::max(own.second, peak_bytes(*plan, device));
  std::vector<std::string> parts;
  for (const auto& [device, own] : bytes)
    parts.push_back(fmt::format("{} {} and {} of temporaries", to_string(device),
                                byte_text(static_cast<double>(own.first)), byte_text(static_cast<double>(own.second))));
  return fmt::format("memory of weights, gradients and optimizer state: {}", fmt::join(parts, "; "));
}

}  // namespace

// Results: the loss, then the sums of metrics, then the targets that count, where not every sample is one.
Compiled<std::vector<Tensor>> Trainer::State::make_step() {
  return compile([this](const Tensor& input, const Tensor& label) { return step_on(input, label); });
}

std::vector<Tensor> Trainer::State::step_on(const Tensor& input, const Tensor& label) {
  const Outputs outputs = model->outputs(task().input(input));
  Tensor loss = task().loss(outputs, label);
  (weighs() ? loss * weight : loss).backward();
  if (config.clip_grad_norm) optim::clip_grad_norm(optimizer->parameters(), Scalar(*config.clip_grad_norm));
  optimizer->step();
  optimizer->clear_grad();
  std::vector<Tensor> results{loss};
  for (Tensor& sum : task().training_sums(outputs, label)) results.push_back(std::move(sum));
  sums_of_a_step = results.size() - 1;
  if (Tensor targets = task().targets(label); targets.defined()) results.push_back(std::move(targets));
  return results;
}

// The loader is where it was.
std::vector<TensorSpec> Trainer::State::specs_of_batch() const {
  const data::LoaderPosition begin = train->position();
  const data::Batch batch = train->next();
  train->seek(begin);
  return {batch.input.spec(), batch.label.spec()};
}

// What the steps since the last report add up to: losses and metrics of those whose results are fetched, every
// fetch_frequency-th. Results are read two steps late, so that the device is never idle.
class Trainer::State::Tally {
 public:
  explicit Tally(State& state) : state_(state) { begin(); }

  void add(std::vector<Tensor> results, const data::Share& share) {
    samples_ += share.own;
    if (!fleet::fetch_due()) return;
    pending_.push_back({std::move(results), share.own});
    ++fetched_;
    if (pending_.size() > 2) read_one();
  }

  void report(int64_t epoch) {
    while (!pending_.empty()) read_one();
    if (fetched_ == 0) return;
    const TimeSpent now = state_.time_spent();
    double seconds = std::max(now.wall - since_.wall, 1e-9);
    sums_.resize(state_.sums_of_a_step);
    add_over_data({&loss_, 1});
    add_over_data(sums_);
    int64_t counts[] = {targets_, samples_};
    add_over_data(counts);
    const auto targets = static_cast<double>(counts[0]), samples = static_cast<double>(counts[1]);
    double loss = loss_ / targets;
    if (!std::isfinite(loss))
      throw_error<ConfigError>(
          "[train] the loss at step {} is not finite: the weights have grown without bound; use a smaller lr (now {}), "
          "warmup_epochs or clip_grad_norm. Checkpoints are of steps before",
          state_.step, state_.optimizer->lr());
    StepReport report{.epoch = epoch + 1,
                      .step = state_.step,
                      .loss = loss,
                      .lr = state_.optimizer->lr(),
                      .samples_per_second = samples / seconds};
    share_time(report, shares_between(since_, now));
    report.scores = scores_of(state_.task(), sums_, targets);
    state_.tell(&Reporter::step, report);
    begin();
  }

 private:
  struct Pending {
    std::vector<Tensor> results;
    int64_t samples;  // of this rank; 0: its batch were stand-ins
  };

  void begin() {
    loss_ = 0;
    targets_ = samples_ = fetched_ = 0;
    sums_.clear();
    since_ = state_.time_spent();
  }

  void read_one() {
    Span span(state_.timeline.get(), kLoopTrack, "wait for results");
    Pending done = std::move(pending_.front());
    pending_.pop_front();
    double loss = done.results[0].item();
    const size_t sums = state_.sums_of_a_step;
    sums_.resize(sums);
    const bool counts = done.results.size() > 1 + sums;
    const int64_t targets = counts ? static_cast<int64_t>(done.results.back().item()) : done.samples;
    if (done.samples == 0 || targets == 0) return;
    loss_ += loss * static_cast<double>(targets);
    targets_ += targets;
    for (size_t i = 0; i < sums; ++i) sums_[i] += done.results[1 + i].item();
  }

  State& state_;
  std::deque<Pending> pending_;  // results that nobody has waited for
  TimeSpent since_;
  double loss_ = 0;
  std::vector<double> sums_;  // of metrics
  int64_t targets_ = 0, samples_ = 0, fetched_ = 0;
};

// By updates, so that micro-batches train as one large batch does.
double Trainer::State::epochs_done() const {
  return static_cast<double>(updates_done()) / static_cast<double>(updates_per_epoch());
}

int64_t Trainer::State::updates_per_epoch() const {
  const int64_t each = config.strategy.accumulate_steps;
  return (train->batches_per_epoch() + each - 1) / each;
}

int64_t Trainer::State::updates_done() const {
  const data::LoaderPosition at = train->position();
  return at.epoch * updates_per_epoch() + at.samples / global_batch() / config.strategy.accumulate_steps;
}

// Batches whose gradients add up from the position on, until an update.
int64_t Trainer::State::batches_until_update() const {
  const int64_t epoch = train->position().epoch;
  return std::min({config.strategy.accumulate_steps, train->batches_until(epoch + 1), total_steps - step});
}

int64_t Trainer::State::samples_until_update() const {  // of all ranks
  return std::min(batches_until_update() * global_batch(), train->samples() - train->position().samples);
}

std::optional<int64_t> Trainer::State::count_targets(const Tensor& label) const {
  NoGrad no_grad;
  const RandomState before = StepContext::current().random;  // counting is no step
  const Tensor counted = task().targets(label);
  if (!counted.defined()) return {};
  const auto count = static_cast<int64_t>(counted.item());
  StepContext::current().random = before;
  return count;
}

Trainer::State::Taken Trainer::State::take() {
  Taken taken;
  taken.begin = train->position();
  taken.batch = train->next();
  taken.share = train->share();
  taken.end = train->position();
  taken.numbers.assign(train->numbers().begin(), train->numbers().end());
  return taken;
}

// A loss is a mean over the targets of its batch. For the gradient of an update to be the mean over those of all its
// batches, where tasks count them, these batches are read ahead.
Trainer::State::Taken Trainer::State::next_batch(bool begins_update) {
  const bool adds_up = config.strategy.accumulate_steps > 1;
  if (begins_update) {
    BONFIRE_CHECK(ahead.empty());
    const int64_t batches = batches_until_update();
    adding = {};
    adding.samples = samples_until_update();
    ahead.push_back(take());
    if (replicas_of_model() > 1 || adds_up)
      for (int64_t i = 0; i < batches; ++i) {
        if (i > 0 && adding.counts) ahead.push_back(take());
        if (i > 0 && !adding.counts) break;
        Taken& taken = ahead.back();
        const std::optional<int64_t> counted = count_targets(taken.batch.label);
        adding.counts = counted.has_value();
        taken.targets = taken.share.own > 0 ? counted.value_or(taken.share.own) : 0;
        adding.own_targets += taken.targets;
      }
  }
  if (ahead.empty()) ahead.push_back(take());
  Taken taken = std::move(ahead.front());
  ahead.pop_front();
  if (!adding.counts) taken.targets = taken.share.own;
  adding.begins = begins_update;
  return taken;
}

// The gradient of an update is the mean over the targets of all its batches, on all ranks.
void Trainer::State::agree(const Taken& taken) {
  const data::Share& share = taken.share;
  const bool alone = local && local->local();
  const double now = seconds_now();
  due_by_clock = {evaluations->by_clock(now), checkpoints->by_clock(now)};
  auto part_of = [](int64_t one, int64_t all) {
    return all == 0 ? 0 : static_cast<double>(one) / static_cast<double>(all);
  };
  double part = adding.counts ? part_of(taken.targets, adding.own_targets) : part_of(share.all, adding.samples);
  if (replicas_of_model() == 1 || alone) weight.set(share.own > 0 ? part : 0);
  if (fleet::world_size() == 1) return;
  const bool clock_of_first[] = {is_first_rank() && due_by_clock.evaluation,
                                 is_first_rank() && due_by_clock.checkpoint};
  due_by_clock = {};
  if (alone && !local->averages_next()) return;
  const int64_t sharing = fleet::world_size() / replicas_of_model();  // a batch; each of them counts its targets
  int64_t counts[] = {asked_to_stop() ? 1 : 0, taken.targets, clock_of_first[0] ? 1 : 0, clock_of_first[1] ? 1 : 0,
                      adding.begins ? adding.own_targets : 0};
  const double asked = seconds_now();
  add_over_ranks(counts);
  agreeing += seconds_now() - asked;
  agreed_to_stop = counts[0] > 0;
  due_by_clock = {counts[2] > 0, counts[3] > 0};
  const int64_t targets = counts[1] / sharing;
  if (adding.begins) adding.targets = counts[4] / sharing;
  if (adding.counts) part = part_of(targets, adding.targets);
  if (!alone) weight.set(part * data::Share{taken.targets, targets, share.world}.weight());
}

bool Trainer::State::train_epoch(int64_t epoch) {
  optim::Schedule schedule{.kind = optim::parse_schedule_kind(config.schedule),
                           .lr = config.scale_lr ? config.lr * replicas_of_model() : config.lr,
                           .milestones = config.milestones,
                           .gamma = config.gamma,
                           .total_steps = total_epochs() - config.warmup_epochs,
                           .warmup_steps = config.warmup_epochs,
                           .warmup_start_lr = config.warmup_start_lr};
  Span whole(timeline.get(), kLoopTrack, fmt::format("epoch {}", epoch + 1));
  show_steps(train->position(), epoch);
  Tally tally(*this);
  if (local) local->begin_epoch(epoch);
  if (balance) own_time.since = own_seconds();  // an evaluation is nobody's step
  // Gradients never add up across a checkpoint: the last batch of an epoch updates, and a stop waits for an update.
  bool updated = true;
  int64_t added = 0;  // batches since an update
  data::LoaderPosition at = train->position();
  due = {};
  while (at.epoch == epoch && step < total_steps && !((must_stop() || due) && updated)) {
    if (writer) writer->check();
    trace_nodes();
    if (updated) {  // rate and average are those of an update, as if its batches were one
      optimizer->set_lr(schedule.at(epochs_done()));
      if (average) average->set_step(updates_done());
    }
    Span next(timeline.get(), kLoopTrack, "next batch");
    const double asked = seconds_now();
    const Taken taken = next_batch(updated);
    at = taken.end;
    own_time.for_data += seconds_now() - asked;
    next.end();
    agree(taken);
    ++step;
    note_samples(taken);
    updated = ++added == config.strategy.accumulate_steps || at.epoch != epoch || step == total_steps;
    if (accumulation != nullptr) accumulation->stand_at(added == 1, updated);
    if (updated) added = 0;
    due = {due.evaluation || due_by_clock.evaluation || evaluations->by_steps(step),
           due.checkpoint || due_by_clock.checkpoint || checkpoints->by_steps(step)};
    Span submission(timeline.get(), kLoopTrack, "submit step");
    const bool standing_in = taken.share.own == 0;
    fleet::StandIns scope(standing_in);
    fleet::RowsOf rows(taken.share);
    tally.add(stages ? train_in_stages(taken) : (*training_step)(taken.batch.input, taken.batch.label), taken.share);
    submission.end();
    show_steps(at, epoch);
    note_collectives();
    note_gathers();
    if (updated) {
      const TensorSpec specs[] = {taken.batch.input.spec(), taken.batch.label.spec()};
      tell_memory(specs);
    }
    balance_shares(taken.batch.input.size(0));
    check_replicas(updated);
    if (step == first_step + 1 && !config.placement.empty()) note(memory_in_words(*model, *optimizer));
    // The first step at once: whoever waits sees that it works.
    if (step % config.log_freq == 0 || step == first_step + 1) tally.report(epoch);
  }
  tally.report(epoch);
  if (balance) count_seconds();
  return train->position().epoch != epoch || step >= total_steps || !must_stop();
}

}  // namespace bonfire::train
