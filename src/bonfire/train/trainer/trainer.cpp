#include "bonfire/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/machine.h"
#include "bonfire/base/program_name.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/parallel/all_devices.h"
#include "bonfire/parallel/data_parallel.h"
#include "bonfire/parallel/placement.h"
#include "bonfire/parallel/strategies/sharding.h"
#include "bonfire/parallel/tensor_split.h"
#include "bonfire/train/checkpoint/restart.h"
#include "bonfire/train/config/config_rules.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;
std::atomic<bool> stop_requested{false};

// As far as it is known: for the time that is left.
int64_t steps_between(const Interval& every, int64_t steps_of_epoch) {
  if (every.unit == Interval::Unit::minutes) return 0;
  return static_cast<int64_t>(every.count) * (every.unit == Interval::Unit::epochs ? steps_of_epoch : 1);
}

// Those that do not decay are a group of their own, after the others.
optim::ParameterGroups groups_of(const Config& c, const std::vector<Parameter>& parameters) {
  if (c.weight_decay == 0 || c.weight_decay_of == "all") return parameters;
  optim::ParameterGroup matrices, others{.parameters = {}, .weight_decay = 0.0};
  for (const Parameter& parameter : parameters)
    (parameter.shape().rank() > 1 ? matrices : others).parameters.push_back(parameter);
  return {matrices, others};
}

optim::Optimizer make_optimizer(const Config& c, const optim::ParameterGroups& parameters) {
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
bool Trainer::State::asked_to_stop() { return stop_requested; }
bool Trainer::State::must_stop() const { return fleet::world_size() == 1 ? asked_to_stop() : agreed_to_stop; }
void Trainer::trace_to(const fs::path& file) {
  state_->timeline = std::make_unique<Timeline>(std::initializer_list<const char*>{kLoopTrack});
  state_->trace_file = file;
  state_->timeline->write(file);  // where that cannot be done, it is better known before the run
}

void Trainer::trace_samples() { state_->samples_are_traced = true; }

void Trainer::State::use_settings() const {
  check_config(config);
  fleet::prepare_devices(config.strategy);
}

void Trainer::State::prepare() {
  Span opening(timeline.get(), kLoopTrack, "open data");
  opened = own ? own_data() : open_data(config);
  opening.end();
  fingerprint = fingerprint_of(config, opened);
  if (own) {
    fingerprint.data = opened.title;
    fingerprint.own = fmt::format("{} for {}", own->structure(), own->task->name());
  }
  require_same_on_ranks("data", shared_data(fingerprint));
  if (!resumed_from.empty()) compare_with_checkpoint();
  if (!opened.passed_over.empty()) note(fmt::format("{}: passed over {}", opened.title, opened.passed_over));
  require_batch_fits();
  Span making(timeline.get(), kLoopTrack, "make model");
  const std::vector<Device> places = places_of(config);
  place = config.place == "auto" ? fleet::default_device() : places[static_cast<size_t>(fleet::rank()) % places.size()];
  manual_seed(config.seed);
  make_model();
  open_loaders();
  training_step.emplace(make_step());
  make_stages();
}

namespace {

bool holds_slices(const nn::Module& model) {
  return std::ranges::any_of(model.state_dict(), [](const auto& one) { return !one.variable.slice().is_all(); });
}

}  // namespace

// Where each rank reads them for itself.
void Trainer::State::require_same_first_weights() const {
  require_same_on_ranks(
      "train", {{"init_from", config.init_from.empty() ? "none" : identity_of_weights(weights_in(config.init_from))}});
}

// Where there are several ranks, all begin with the weights of the first, which alone needs the file they come from;
// but whoever has slices of a program's own making reads these.
void Trainer::State::make_model() {
  model = own ? own->model : models::make(config.model, opened.model);
  task().check_model(*model, model_name());
  if (holds_slices(*model) && !goes_on && !in_stages()) require_same_first_weights();
  if (!config.init_from.empty() && (is_first_rank() || holds_slices(*model)) && !goes_on && !in_stages()) {
    nn::LoadReport report =
        nn::load_state_dict(model->state_dict(), open_tensors(weights_in(config.init_from)), {.strict = config.strict});
    if (!report.complete()) note(to_string(report));
  }
  if (!own || !own->is_copied) model->to(place);
  bonfire::place(*model, config.placement);
  // What ranks share out is known before the optimizer is made: its states are parts, too.
  if (config.mesh.tensor > 1 && !own)
    fleet::tensor_splits(*model, splits_of(config), config.mesh.tensor);  // or says why
  if (in_stages()) fleet::share_out_layers(*model, {.split = splits_of(config)});
  if (fleet::world_size() > 1 && !in_stages()) model = fleet::distributed_model(*model, {.split = splits_of(config)});
  optimizer = make_optimizer(config, groups_of(config, model->parameters()));
  distributed.emplace(*optimizer, chosen_strategy(config));  // the environment has had its say in the configuration
  if (const auto* sharding = fleet::sharding_of_job();
      own && sharding != nullptr && sharding->level() == fleet::Sharded::parameters)
    throw_error<ConfigError>(
        "[train] strategy.sharding: parameters would leave the program's own model in parts; take gradients, or a loop "
        "of "
        "the program's own, which can fleet::gather() them");
  local = fleet::local_sgd_of_job();
  accumulation = fleet::accumulation_of_job();
  if (accumulation != nullptr) accumulation->leave_weights_to_program();  // see agree()
  if (fleet::world_size() > 1 && config.check_replicas && !in_stages())
    replicas.emplace(fleet::replicated(*model, *optimizer));
  if (config.ema_decay && !in_stages()) average.emplace(*model, *optimizer, *config.ema_decay);
}

// Of the devices of one process the batch is dealt out, while ranks have a batch each.
int64_t Trainer::State::own_batch() const {
  return places_of(config).size() > 1 ? config.batch_size / replicas_of_model() : config.batch_size;
}

// Refused before anything of that size is made.
void Trainer::State::require_batch_fits() const {
  const double sample = opened.sample_bytes;
  const auto memory = static_cast<double>(base::memory_bytes());
  if (sample * static_cast<double>(own_batch()) > memory)
    throw_error<ConfigError>(
        "[train] batch_size is {}: so many samples of {} do not fit into the {:.1f} GB of this machine, expected at "
        "most {}",
        own_batch(), opened.title, memory / 1e9, static_cast<int64_t>(memory / sample));
}

void Trainer::State::open_loaders() {
  if (config.balance == "auto" && replicas_of_model() > 1) balance.emplace(replicas_of_model(), own_batch());
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
  if (opened.test) test = std::make_unique<data::DataLoader>(opened.test, loading);
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

// --- the run ---------------------------------------------------------------------------------------------------------

std::string Trainer::State::place_in_words() const {
  if (!config.placement.empty()) return fmt::format("{}, {}", to_string(place), bonfire::to_string(config.placement));
  return places_of(config).size() > 1 ? config.place : to_string(place);
}

RunBegins Trainer::State::beginning() const {
  RunBegins run{.folder = folder,
                .model = model_name(),
                .data = opened.title,
                .place = place_in_words(),
                .resumed_from = resumed_from.string(),
                .train_samples = train->samples(),
                .test_samples = test ? test->samples() : 0,
                .validation_samples = validation ? validation->samples() : 0,
                .unit = task().unit(),
                .pixels = opened.pixels,
                .task = task().name(),
                .metrics = task().metrics(),
                .predict_hint = task().predict_hint(),
                .data_hint = task().data_hint(),
                .epochs = static_cast<int64_t>(std::ceil(total_epochs())),
                .steps_per_epoch = train->batches_per_epoch(),
                .total_steps = total_steps,
                .batch_size = own_batch(),
                .steps_between_evaluations = steps_between(config.eval_freq, train->batches_per_epoch()),
                .ranks = fleet::world_size(),
                .replicas = replicas_of_model(),
                .mesh = replicas_of_model() == fleet::world_size() ? "" : to_string(fleet::mesh()),
                .first_step = step,
                .config = own ? to_yaml(config, kKeysOfKnownTasks) : to_yaml(config),
                .modules = nn::to_string(*model),
                .class_names = opened.class_names,
                .command = fleet::shell_text(fleet::command_words()),
                .version = comm::library_version(),
                .other_than_was = other_than_was};
  for (const Change& one : changes) run.changes.push_back(in_words({one}));
  if (stages) run.schedule = stages->schedule();
  run.layers = model_table(*model, example());
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
  if (over && validation && test) evaluate_best_on_test_data(epoch);
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
    if (train->position().epoch != epoch) tell(&Reporter::epoch_ended, EpochReport{.epoch = epoch + 1, .step = step});
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
  end.best_score = best_score.value_or(0);
  end.last_score = last_score.value_or(0);
  end.test_score = test_score;
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
  if (state_->own) {
    threads.copy_variables_of(state_->own->model);
    state_->own->is_copied = true;
  }
  RunEnds end;
  threads.run([&](size_t i) {
    if (i == 0) end = run_as_rank();
    if (i == 0) return;
    Trainer other(config);
    other.state_->own = state_->own;
    other.state_->goes_on = state_->goes_on;
    other.state_->samples_are_traced = state_->samples_are_traced;
    other.run_as_rank();
  });
  return end;
}

RunEnds Trainer::run() {
  if (state_->own)
    throw_error<ConfigError>("[train] this trainer has a model of the program's own: call fit(), not run()");
  return run_whole();
}

RunEnds Trainer::run_whole() {
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
  const State::WhileDistributed scope{s};
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
  s.total_steps = s.steps_in_all();
  if (s.is_complete()) return s.tell_complete();
  const Mesh& mesh = fleet::mesh();
  if (s.samples_are_traced && mesh.place(Axis::tensor) == 0 && mesh.place(Axis::pipeline) == 0)
    s.sample_trace = std::make_unique<SampleTrace>(s.folder, s.ledger.restarts(), mesh.place(Axis::data));
  s.make_writer();
  if (is_first_rank()) {
    std::string yaml = s.own ? to_yaml(s.config, kKeysOfKnownTasks) : to_yaml(s.config);
    const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(yaml))};
    base::write_file_atomically(s.folder / "config.yaml", chunks);
    write_job(s.folder);
    s.tell(&Reporter::begin, s.beginning());
    s.note_hints();
  }
  RunEnds end = s.stages ? s.train_all_in_stages() : s.train_all();
  s.tell(&Reporter::end, end);
  for (const auto& reporter : s.reporters)
    if (std::string missing = reporter->missing(); !missing.empty()) s.note(missing);
  return end;
}

}  // namespace bonfire::train
