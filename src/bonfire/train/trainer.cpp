#include "bonfire/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "bonfire/backend/cpu/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/machine.h"
#include "bonfire/base/program_name.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/image.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/optim/clip_grad.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/optim/schedule.h"
#include "bonfire/parallel/all_devices.h"
#include "bonfire/parallel/data_parallel.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/config_rules.h"
#include "bonfire/train/image_sizes.h"
#include "bonfire/train/trainer_state.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;
std::atomic<bool> stop_requested{false};
constexpr const char* kLoopTrack = "training loop";

// As far as it is known: for the time that is left.
int64_t steps_between(const Interval& every, int64_t steps_of_epoch) {
  if (every.unit == Interval::Unit::minutes) return 0;
  return static_cast<int64_t>(every.count) * (every.unit == Interval::Unit::epochs ? steps_of_epoch : 1);
}

optim::Optimizer make_optimizer(const Config& c, const std::vector<Parameter>& parameters) {
  if (c.optimizer == "sgd") return optim::SGD(parameters, {.lr = c.lr, .weight_decay = c.weight_decay});
  if (c.optimizer == "adagrad") return optim::Adagrad(parameters, {.lr = c.lr, .weight_decay = c.weight_decay});
  if (c.optimizer == "adam") return optim::Adam(parameters, {.lr = c.lr, .weight_decay = c.weight_decay});
  if (c.optimizer == "adamw") return optim::AdamW(parameters, {.lr = c.lr, .weight_decay = c.weight_decay});
  if (c.optimizer == "lamb") return optim::LAMB(parameters, {.lr = c.lr, .weight_decay = c.weight_decay});
  if (c.optimizer == "lars")
    return optim::LARS(parameters, {.lr = c.lr, .momentum = c.momentum, .weight_decay = c.weight_decay});
  return optim::Momentum(
      parameters,
      {.lr = c.lr, .momentum = c.momentum, .weight_decay = c.weight_decay, .nesterov = c.optimizer == "nesterov"});
}

}  // namespace

Trainer::Trainer(Config config) : state_(std::make_unique<State>()) {
  state_->config = std::move(config);
  if (state_->config.resume.empty()) state_->use_settings();  // else with those of the run
}
Trainer::~Trainer() = default;

void Trainer::add(std::unique_ptr<Reporter> reporter) { state_->reporters.push_back(std::move(reporter)); }
void Trainer::request_stop() { stop_requested = true; }
void Trainer::trace_to(const fs::path& file) {
  state_->timeline = std::make_unique<Timeline>(std::initializer_list<const char*>{kLoopTrack});
  state_->trace_file = file;
  state_->timeline->write(file);  // where that cannot be done, it is better known before the run
}

void Trainer::trace_samples() { state_->samples_are_traced = true; }

void Trainer::State::use_settings() const {
  check_config(config);
  for (const char* name : {"lstm_classifier", "two_headed"})
    if (config.model == name)
      throw_error<ConfigError>(
          "[train] {} neither classifies images nor predicts masked words, and there is no other data here yet; use it "
          "from C++",
          name);
  cpu::set_ops_in_flight(static_cast<int>(config.strategy.num_threads));
  if (config.strategy.cpu_threads) cpu::set_cpu_threads(static_cast<int>(*config.strategy.cpu_threads));
}

void Trainer::State::prepare() {
  Span opening(timeline.get(), kLoopTrack, "open data");
  opened = open_data(config);
  opening.end();
  fingerprint = fingerprint_of(config, opened);
  require_same_on_ranks("data", shared_data(fingerprint));
  if (!resumed_from.empty()) compare_with_checkpoint();
  if (!opened.passed_over.empty()) note(fmt::format("{}: passed over {}", opened.title, opened.passed_over));
  require_batch_fits();
  Span making(timeline.get(), kLoopTrack, "make model");
  const std::vector<Device> places = places_of(config);
  place = config.place == "auto" ? fleet::default_device() : places[static_cast<size_t>(fleet::rank()) % places.size()];
  StepOptions& options = StepContext::current().options;
  options.use_amp = config.strategy.use_amp;
  options.fuse_bn_act_ops = config.strategy.fuse_bn_act_ops;
  options.fuse_elewise_add_act_ops = config.strategy.fuse_elewise_add_act_ops;
  options.fast_math = config.strategy.fast_math;
  runtime::set_release_frequency(config.strategy.num_iteration_per_drop_scope);
  manual_seed(config.seed);
  make_model();
  if (!opened.is_text()) set_pixels(opened.mean, opened.deviation);
  open_loaders();
  training_step.emplace(make_step());
}

models::ModelOptions Trainer::State::model_options() const {
  return {
      .classes = opened.classes, .in_channels = opened.is_text() ? 1 : opened.image[2], .vocabulary = opened.classes};
}

// Where there are several ranks, all begin with the weights of the first, which alone needs the file they come from.
void Trainer::State::make_model() {
  model = models::make(config.model, model_options());
  if (!opened.is_text()) require_size(*model, config.model, opened.image);
  if (!config.init_from.empty() && is_first_rank() && !goes_on) {
    nn::LoadReport report = model->load(weights_in(config.init_from), {.strict = config.strict});
    if (!report.complete()) note(to_string(report));
  }
  model->to(place);
  optimizer = make_optimizer(config, model->parameters());
  if (fleet::world_size() > 1) {
    DistributedStrategy strategy = config.strategy;
    strategy.accumulate_steps = 1;  // the loop counts and weighs batches itself, and has used these
    strategy.num_threads = DistributedStrategy{}.num_threads;
    strategy.cpu_threads.reset();
    model = fleet::distributed_model(*model);
    fleet::detail::distribute_optimizer(*optimizer, strategy);  // the environment has had its say in the configuration
    local = fleet::local_sgd_of_job();
    if (config.check_replicas) replicas.emplace(fleet::replicated(*model, *optimizer));
  }
  if (config.strategy.accumulate_steps > 1)
    accumulation.emplace(*optimizer, config.strategy.accumulate_steps, fleet::Accumulation::Weights::given);
  if (config.ema_decay) {
    models::Model mean_model = models::make(config.model, model_options());
    mean_model.to(place);
    average.emplace(std::move(mean_model), *model, *optimizer, *config.ema_decay);
  }
}

// Of the devices of one process the batch is dealt out, while ranks have a batch each.
int64_t Trainer::State::own_batch() const {
  return places_of(config).size() > 1 ? config.batch_size / fleet::world_size() : config.batch_size;
}

// Refused before anything of that size is made. Text has two numbers of 8 bytes a token.
void Trainer::State::require_batch_fits() const {
  const auto sample =
      static_cast<double>(opened.is_text() ? 16 * config.seq_length : 5 * opened.image.count());  // bytes
  const auto memory = static_cast<double>(base::memory_bytes());
  if (sample * static_cast<double>(own_batch()) > memory)
    throw_error<ConfigError>(
        "[train] batch_size is {}: so many samples of {} do not fit into the {:.1f} GB of this machine, expected at "
        "most {}",
        own_batch(), opened.title, memory / 1e9, static_cast<int64_t>(memory / sample));
}

void Trainer::State::open_loaders() {
  if (config.balance == "auto" && fleet::world_size() > 1) balance.emplace(fleet::world_size(), own_batch());
  data::LoaderOptions loading{.batch_size = own_batch(),
                              .sampler = fleet::sampler(),
                              .shuffle = true,
                              .drop_last = config.drop_last,
                              .limit = config.limit.value_or(0),
                              .seed = config.seed,
                              .num_workers = static_cast<int>(config.num_workers),
                              .transform = opened.train_transform,
                              .device = place,
                              .on_batch = batches_on_timeline("training")};
  train = std::make_unique<data::DataLoader>(opened.train, loading);
  loading.shuffle = loading.drop_last = false;
  loading.limit = 0;
  loading.transform = opened.test_transform;
  loading.on_batch = batches_on_timeline("test");
  test = std::make_unique<data::DataLoader>(opened.test, loading);
  if (!opened.validation) return;
  loading.on_batch = batches_on_timeline("validation");
  validation = std::make_unique<data::DataLoader>(opened.validation, loading);
}

// A track for each worker. Without workers the training loop makes its batches itself.
std::function<void(const data::MadeBatch&)> Trainer::State::batches_on_timeline(const char* part) const {
  if (!timeline) return {};
  return [this, part](const data::MadeBatch& made) {
    std::string track = config.num_workers == 0 ? kLoopTrack : fmt::format("{} data, worker {}", part, made.worker + 1);
    timeline->add(
        track, "make batch", made.begin, made.seconds,
        {{"epoch", std::to_string(made.which.epoch + 1)}, {"from sample", std::to_string(made.which.samples + 1)}});
  };
}

void Trainer::State::set_pixels(const std::vector<float>& means, const std::vector<float>& deviations) {
  if (means.size() != static_cast<size_t>(opened.image[2]) || deviations.size() != means.size())
    throw_error<DataError>("[train] the weights were trained on images of {} channels, {} has {}", means.size(),
                           opened.title, opened.image[2]);
  mean = Tensor::from<float>(means, {opened.image[2]}, place);
  deviation = Tensor::from<float>(deviations, {opened.image[2]}, place);
}

Tensor Trainer::State::logits_of(const models::Model& of, const Tensor& input) const {
  if (opened.is_text()) return reshape(of(input), {input.shape().count(), opened.vocabulary});
  return of(normalize_image(input, mean, deviation, {.channels_last = true}));
}

Tensor Trainer::State::targets_of(const Tensor& label) const {
  return opened.is_text() ? reshape(label, {label.shape().count()}) : label;
}

Tensor Trainer::State::count_targets(const Tensor& target) {  // data::kNotATarget is negative
  return sum(greater_equal(target, 0).to(DType::i64));
}

Compiled<std::vector<Tensor>> Trainer::State::make_step() {
  return compile([this](const Tensor& input, const Tensor& label) {
    // Under mixup a label is a share of each class.
    bool mixed = label.dtype() == DType::f32;
    Tensor logits = logits_of(*model, input), target = mixed ? argmax(label, 1) : targets_of(label);
    Tensor loss =
        mixed ? bonfire::mean(sum(log_softmax(logits, 1) * label, {1})) * -1.0 : cross_entropy(logits, target);
    (weighs() ? loss * weight : loss).backward();
    if (config.clip_grad_norm) optim::clip_grad_norm(optimizer->parameters(), Scalar(*config.clip_grad_norm));
    optimizer->step();
    optimizer->clear_grad();
    // Of text, nothing else may look at the logits: then they never exist as a whole (fuse_linear_cross_entropy).
    return std::vector<Tensor>{loss, opened.is_text() ? count_targets(target) : top_k_correct(logits, target)};
  });
}

// --- the loop --------------------------------------------------------------------------------------------------------

// What the steps since the last report add up to: losses and hits of those whose results are fetched, every
// fetch_frequency-th. Results are read two steps late, so that the device is never idle.
class Trainer::State::Tally {
 public:
  explicit Tally(State& state) : state_(state) { begin(); }

  void add(std::vector<Tensor> results, const data::Share& share) {
    samples_ += share.own;
    if ((state_.step - 1) % state_.config.strategy.fetch_frequency != 0) return;
    pending_.push_back({std::move(results), share.own});
    ++fetched_;
    if (pending_.size() > 2) read_one();
  }

  void report(int64_t epoch) {
    while (!pending_.empty()) read_one();
    if (fetched_ == 0) return;
    const TimeSpent now = state_.time_spent();
    double seconds = std::max(now.wall - since_.wall, 1e-9);
    add_over_ranks({&loss_, 1});
    int64_t counts[] = {correct_, targets_, samples_};
    add_over_ranks(counts);
    auto [correct, targets, samples] = counts;
    double loss = loss_ / static_cast<double>(targets);
    if (!std::isfinite(loss))
      throw_error<ConfigError>(
          "[train] the loss at step {} is not finite: the weights have grown without bound; use a smaller lr (now {}), "
          "warmup_epochs or clip_grad_norm. Checkpoints are of steps before",
          state_.step, state_.optimizer->lr());
    StepReport report{.epoch = epoch + 1,
                      .step = state_.step,
                      .loss = loss,
                      .lr = state_.optimizer->lr(),
                      .samples_per_second = static_cast<double>(samples) / seconds};
    share_time(report, shares_between(since_, now));
    if (!state_.opened.is_text()) report.top1 = static_cast<double>(correct) / static_cast<double>(targets);
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
    correct_ = targets_ = samples_ = fetched_ = 0;
    since_ = state_.time_spent();
  }

  void read_one() {
    Span span(state_.timeline.get(), kLoopTrack, "wait for results");
    Pending done = std::move(pending_.front());
    pending_.pop_front();
    double loss = done.results[0].item();
    auto counted = static_cast<int64_t>(done.results[1].item());
    bool is_text = state_.opened.is_text();  // which counts targets, images what was right
    int64_t targets = is_text ? counted : done.samples;
    if (done.samples == 0 || targets == 0) return;
    loss_ += loss * static_cast<double>(targets);
    targets_ += targets;
    if (!is_text) correct_ += counted;
  }

  State& state_;
  std::deque<Pending> pending_;  // results that nobody has waited for
  TimeSpent since_;
  double loss_ = 0;
  int64_t correct_ = 0, targets_ = 0, samples_ = 0, fetched_ = 0;
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

bool Trainer::State::must_stop() const { return fleet::world_size() == 1 ? stop_requested.load() : agreed_to_stop; }

// Samples of all ranks whose gradients add up from the position on, until an update.
int64_t Trainer::State::samples_until_update() const {
  data::LoaderPosition at = train->position();
  int64_t batches =
      std::min({config.strategy.accumulate_steps, train->batches_until(at.epoch + 1), total_steps - step});
  return std::min(batches * global_batch(), train->samples() - at.samples);
}

// The gradient of an update is the mean over the samples of all its batches, on all ranks. Of text: over the words that
// are asked for in each batch.
void Trainer::State::agree(const Tensor& label, int64_t until_update) {
  data::Share share = train->share();
  double part = static_cast<double>(share.all) / static_cast<double>(until_update);
  const bool alone = local && local->local();
  const double now = seconds_now();
  due_by_clock = {evaluations->by_clock(now), checkpoints->by_clock(now)};
  if (fleet::world_size() == 1 || alone) weight.set(share.own > 0 ? part : 0);
  if (fleet::world_size() == 1) return;
  const bool clock_of_first[] = {is_first_rank() && due_by_clock.evaluation,
                                 is_first_rank() && due_by_clock.checkpoint};
  due_by_clock = {};
  if (alone && !local->averages_next()) return;
  int64_t words = 0;
  if (opened.is_text() && share.own > 0)
    for (int64_t word : label.to_vector<int64_t>()) words += word >= 0 ? 1 : 0;
  int64_t counts[] = {stop_requested ? 1 : 0, words, clock_of_first[0] ? 1 : 0, clock_of_first[1] ? 1 : 0};
  const double asked = seconds_now();
  add_over_ranks(counts);
  agreeing += seconds_now() - asked;
  agreed_to_stop = counts[0] > 0;
  due_by_clock = {counts[2] > 0, counts[3] > 0};
  if (!alone) weight.set(part * (opened.is_text() ? data::Share{words, counts[1], share.world} : share).weight());
}

bool Trainer::State::train_epoch(int64_t epoch) {
  optim::Schedule schedule{.kind = optim::parse_schedule_kind(config.schedule),
                           .lr = config.scale_lr ? config.lr * fleet::world_size() : config.lr,
                           .milestones = config.milestones,
                           .gamma = config.gamma,
                           .total_steps = total_epochs() - config.warmup_epochs,
                           .warmup_steps = config.warmup_epochs,
                           .warmup_start_lr = config.warmup_start_lr};
  Span whole(timeline.get(), kLoopTrack, fmt::format("epoch {}", epoch + 1));
  show_steps(epoch);
  Tally tally(*this);
  if (local) local->begin_epoch(epoch);
  if (balance) pace.since = own_seconds();  // an evaluation is nobody's step
  // Gradients never add up across a checkpoint: the last batch of an epoch updates, and a stop waits for an update.
  bool updated = true;
  int64_t added = 0, until_update = 0;  // batches since an update; samples of all that add up
  due = {};
  while (train->position().epoch == epoch && step < total_steps && !((must_stop() || due) && updated)) {
    if (writer) writer->check();
    trace_nodes();
    if (updated) {  // rate and average are those of an update, as if its batches were one
      until_update = samples_until_update();
      optimizer->set_lr(schedule.at(epochs_done()));
      if (average) average->set_step(updates_done());
    }
    Span next(timeline.get(), kLoopTrack, "next batch");
    const double asked = seconds_now();
    const data::LoaderPosition begin = train->position();
    auto [input, label] = train->next();
    pace.for_data += seconds_now() - asked;
    next.end();
    agree(label, until_update);
    ++step;
    note_samples(begin);
    updated = ++added == config.strategy.accumulate_steps || train->position().epoch != epoch || step == total_steps;
    if (accumulation) accumulation->stand_at(added == 1, updated);
    if (updated) added = 0;
    due = {due.evaluation || due_by_clock.evaluation || evaluations->by_steps(step),
           due.checkpoint || due_by_clock.checkpoint || checkpoints->by_steps(step)};
    Span launch(timeline.get(), kLoopTrack, "launch step");
    const data::Share share = train->share();
    const bool standing_in = share.own == 0;
    fleet::StandIns scope(standing_in);
    fleet::RowsOf rows(share);
    tally.add((*training_step)(input, label), share);
    launch.end();
    show_steps(epoch);
    note_collectives();
    balance_shares(input.size(0));
    check_replicas(updated);
    // The first step at once: whoever waits sees that it works.
    if (step % config.log_freq == 0 || step == first_step + 1) tally.report(epoch);
  }
  tally.report(epoch);
  if (balance) count_seconds();
  return train->position().epoch != epoch || step >= total_steps || !must_stop();
}

// --- the run ---------------------------------------------------------------------------------------------------------

RunBegins Trainer::State::beginning() const {
  RunBegins run{.folder = folder,
                .model = config.model,
                .data = opened.title,
                .place = places_of(config).size() > 1 ? config.place : to_string(place),
                .resumed_from = resumed_from.string(),
                .train_samples = train->samples(),
                .test_samples = test->samples(),
                .validation_samples = validation ? validation->samples() : 0,
                .unit = opened.is_text() ? "sequences" : "images",
                .pixels = opened.pixels,
                .classes = opened.classes,
                .epochs = static_cast<int64_t>(std::ceil(total_epochs())),
                .steps_per_epoch = train->batches_per_epoch(),
                .total_steps = total_steps,
                .batch_size = own_batch(),
                .steps_between_evaluations = steps_between(config.eval_freq, train->batches_per_epoch()),
                .ranks = fleet::world_size(),
                .first_step = step,
                .config = to_yaml(config),
                .modules = nn::to_string(*model),
                .class_names = opened.class_names,
                .command = fleet::shell_text(fleet::command_words()),
                .version = comm::library_version(),
                .other_than_was = other_than_was};
  for (const Change& one : changes) run.changes.push_back(in_words({one}));
  Tensor sample = opened.is_text() ? Tensor::from<int64_t>(std::vector<int64_t>(static_cast<size_t>(config.seq_length)),
                                                           {1, config.seq_length}, place)
                                   : Tensor::from<float>(std::vector<float>(static_cast<size_t>(opened.image.count())),
                                                         {1, opened.image[2], opened.image[0], opened.image[1]}, place);
  run.layers = model_table(*model, sample);
  for (const Parameter& parameter : model->parameters()) run.parameters += parameter.shape().count();
  return run;
}

bool Trainer::State::evaluate_and_save(int64_t epoch) {
  const bool last = step >= total_steps, ends_epoch = train->position().epoch != epoch;
  share_weights();
  bool goes_on = true;
  if (last || due.evaluation || (ends_epoch && evaluations->by_epochs(epoch + 1))) {
    goes_on = evaluate(epoch, ends_epoch);
    evaluations->done(step, seconds_now());
  }
  const bool best = best_checkpoint.filename() == checkpoint_name(step), over = last || !goes_on;
  if (over && validation) evaluate_best_on_test_data(epoch);
  if (over || best || due.checkpoint || (ends_epoch && checkpoints->by_epochs(epoch + 1))) {
    save();
    checkpoints->done(step, seconds_now());
  }
  return goes_on;
}

RunEnds Trainer::State::train_all() {
  double start = seconds_now();
  evaluations.emplace(config.eval_freq, step, start);
  checkpoints.emplace(config.save_freq, step, start);
  RunEnds end;
  while (step < total_steps && !must_stop() && !end.stopped_early) {
    int64_t epoch = train->position().epoch;
    if (!train_epoch(epoch)) break;
    end.stopped_early = !evaluate_and_save(epoch);
  }
  end.interrupted = must_stop() && step < total_steps;
  if (end.interrupted && saved_step != step) {  // at the end of an epoch it may just have been saved
    share_weights();
    save();
  }
  if (writer) {
    show_saving();
    writer->finish();
  }
  if (timeline) {
    collect_nodes();
    write_trace(end);
  }
  end.checkpoint = last_checkpoint;
  end.weights = folder / "best.safetensors";
  end.best_top1 = best_top1;
  end.last_top1 = last_top1;
  end.test_top1 = test_top1;
  end.seconds = seconds_now() - start;
  finish_ledger(end);
  return end;
}

// A trainer for each device, in a thread of its own; this one is the first.
RunEnds Trainer::run_on(const std::vector<Device>& places) {
  const Config& config = state_->config;
  const auto count = static_cast<int64_t>(places.size());
  if (fleet::world_size() > 1)
    throw_error<ConfigError>(
        "[train] place names {} devices, and this process is one of {} ranks, each of which has one; leave place out",
        count, fleet::world_size());
  if (int64_t rest = config.batch_size % count; rest != 0)
    throw_error<ConfigError>("[train] batch_size is {}, which {} devices cannot share evenly; use {} or {}",
                             config.batch_size, count, std::max(count, config.batch_size - rest),
                             config.batch_size - rest + count);
  detail::DeviceThreads threads(places);
  RunEnds end;
  threads.run([&](size_t i) {
    if (i == 0) end = run_as_rank();
    if (i == 0) return;
    Trainer other(config);
    other.state_->goes_on = state_->goes_on;
    other.state_->samples_are_traced = state_->samples_are_traced;
    other.run_as_rank();
  });
  return end;
}

RunEnds Trainer::run() {
  struct Leave {  // the folder is another's to take once nothing is written any more
    State& state;
    ~Leave() {
      state.writer.reset();
      state.lock.reset();
    }
  } leave{*state_};
  state_->settle();
  const std::vector<Device> places = places_of(state_->config);
  return places.size() > 1 ? run_on(places) : run_as_rank();
}

RunEnds Trainer::run_as_rank() {
  State& s = *state_;
  if (s.config.num_gpus > 1 && fleet::world_size() == 1)
    throw_error<ConfigError>(
        "[train] num_gpus is {0}, and this process is alone; start {0} with: {1} train --nproc {0}", s.config.num_gpus,
        base::program_name());
  s.agreed_to_stop = false;
  struct Forget {  // a stop is of one run, however that ends
    ~Forget() { stop_requested = false; }
  } forget;
  s.prepare();
  s.begin_or_resume();
  s.first_step = s.step;
  s.total_steps = s.config.steps.value_or(s.step + s.train->batches_until(s.config.epochs));
  if (s.is_complete()) return s.tell_complete();
  if (s.samples_are_traced)
    s.sample_trace = std::make_unique<SampleTrace>(s.folder, s.ledger.restarts(), fleet::rank());
  if (is_first_rank()) {
    s.writer = std::make_unique<CheckpointWriter>(
        s.folder / "checkpoints", CheckpointWriter::Options{.keep = s.config.keep_last, .timeline = s.timeline.get()});
    s.writer->prepare(s.checkpoint_source());
    std::string yaml = to_yaml(s.config);
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(yaml))};
    base::write_file_atomically(s.folder / "config.yaml", chunks);
    s.tell(&Reporter::begin, s.beginning());
    s.note_hints();
  }
  RunEnds end = s.train_all();
  s.tell(&Reporter::end, end);
  for (const auto& reporter : s.reporters)
    if (std::string missing = reporter->missing(); !missing.empty()) s.note(missing);
  return end;
}

}  // namespace bonfire::train
