#include "bonfire/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>

#include "bonfire/backend/cpu/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/loader.h"
#include "bonfire/graph/engine.h"
#include "bonfire/models/make.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/image.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/optim/clip_grad.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/optim/schedule.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/compile.h"
#include "bonfire/runtime/tuning.h"
#include "bonfire/train/checkpoint.h"
#include "bonfire/train/open_data.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::atomic<bool> stop_requested{false};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A setting that would be read and then ignored is refused instead.
void refuse_what_is_not_built(const Config& c) {
  const DistributedStrategy& s = c.strategy;
  const std::pair<const char*, bool> not_yet[] = {
      {"num_gpus above 1", c.num_gpus != 1},
      {"backend", c.backend != "auto"},
      {"scale_lr", c.scale_lr},
      {"ema_decay", c.ema_decay.has_value()},
      {"strategy.use_local_sgd", s.use_local_sgd},
      {"strategy.use_recompute", s.use_recompute},
      {"strategy.sync_batch_norm", s.sync_batch_norm},
      {"strategy.amp_dtype: f16", s.use_amp && s.amp_dtype == "f16"},
      {"strategy.fetch_frequency above 1", s.fetch_frequency != 1},
      {"strategy.num_iteration_per_drop_scope", s.num_iteration_per_drop_scope != 100},
  };
  for (const auto& [name, asked] : not_yet)
    if (asked) throw_error<ConfigError>("[train] {} is not built yet; leave it out", name);
  for (const char* name : {"lstm_classifier", "two_headed"})
    if (c.model == name)
      throw_error<ConfigError>(
          "[train] {} neither classifies images nor predicts masked words, and there is no other data here yet; use it "
          "from C++",
          name);
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

nn::StateDict optimizer_state(const optim::Optimizer& optimizer) {
  nn::StateDict state;
  for (const auto& [name, variable] : optimizer.state()) state.push_back({name, variable});
  return state;
}

// How many targets there are that are not left out (data::kNotATarget): i64, rank 0.
Tensor count_targets(const Tensor& target) { return sum(greater_equal(target, 0).to(DType::i64)); }

// The next number that no run in the folder has.
fs::path new_run_folder(const fs::path& output) {
  std::error_code error;
  fs::create_directories(output, error);
  for (int number = 1;; ++number) {
    fs::path folder = output / std::to_string(number);
    if (fs::create_directory(folder, error)) return folder;
    if (error)
      throw_error<ConfigError>("[train] cannot make '{}': {}; choose another output", folder.string(), error.message());
  }
}

}  // namespace

struct Trainer::State {
  Config config;
  std::vector<std::unique_ptr<Reporter>> reporters;
  fs::path folder;
  Device place;
  OpenedData opened;
  std::optional<models::Model> model;
  std::optional<optim::Optimizer> optimizer;
  std::unique_ptr<data::DataLoader> train, test;
  Tensor mean, deviation;

  int64_t step = 0;  // done
  double best_top1 = -1, last_top1 = 0;
  int64_t evaluations_without_gain = 0;
  fs::path best_checkpoint, last_checkpoint;

  template <class Event>
  void tell(void (Reporter::*event)(const Event&), const Event& what) {
    for (auto& reporter : reporters) (*reporter.*event)(what);
  }

  void prepare();
  std::optional<fs::path> checkpoint_to_resume();
  void restore(const fs::path& checkpoint);
  void save();
  RunEnds train_all();
  void train_epoch(int64_t epoch);
  EvaluationReport measure(int64_t epoch) const;
  bool evaluate(int64_t epoch);  // false: no gain for long enough, stop
  void set_pixels(const std::vector<float>& means, const std::vector<float>& deviations);
  void judge(const Tensor& logits, const Tensor& label, int64_t first, EvaluationReport& report) const;
  RunBegins beginning(const std::string& resumed_from) const;

  // Rows of logits and a target for each: of an image, or of each token of a text, most of which are not asked for.
  Tensor logits_of(const Tensor& input) const {
    if (opened.is_text()) return reshape((*model)(input), {input.shape().count(), opened.vocabulary});
    return (*model)(normalize_image(input, mean, deviation, {.channels_last = true}));
  }
  Tensor targets_of(const Tensor& label) const {
    return opened.is_text() ? reshape(label, {label.shape().count()}) : label;
  }

  struct Micro {
    Compiled<std::vector<Tensor>> add, update;  // only adds to the gradients; adds and updates
  };
  std::unique_ptr<Micro> micro;
  Micro make_steps();
};

Trainer::Trainer(Config config) : state_(std::make_unique<State>()) {
  refuse_what_is_not_built(config);
  cpu::set_ops_in_flight(static_cast<int>(config.strategy.num_threads));
  if (config.strategy.cpu_threads) cpu::set_cpu_threads(static_cast<int>(*config.strategy.cpu_threads));
  state_->config = std::move(config);
}
Trainer::~Trainer() = default;

void Trainer::add(std::unique_ptr<Reporter> reporter) { state_->reporters.push_back(std::move(reporter)); }
void Trainer::request_stop() { stop_requested = true; }

void Trainer::State::prepare() {
  opened = open_data(config);
  place = config.place == "auto" ? default_device() : parse_device(config.place);
  passes::Options& options = passes::current_options();
  options.use_amp = config.strategy.use_amp;
  options.fuse_bn_act_ops = config.strategy.fuse_bn_act_ops;
  options.fuse_elewise_add_act_ops = config.strategy.fuse_elewise_add_act_ops;
  manual_seed(config.seed);

  model = models::make(
      config.model,
      {.classes = opened.classes, .in_channels = opened.is_text() ? 1 : opened.image[2], .vocabulary = opened.classes});
  if (!config.init_from.empty()) {
    fs::path file = fs::is_directory(config.init_from) ? weights_file(config.init_from) : fs::path(config.init_from);
    nn::LoadReport report = model->load(file, {.strict = config.strict});
    if (!report.complete())
      for (auto& reporter : reporters) reporter->note(to_string(report));
  }
  model->to(place);
  optimizer = make_optimizer(config, model->parameters());
  if (!opened.is_text()) set_pixels(opened.mean, opened.deviation);

  data::LoaderOptions loading{.batch_size = config.batch_size,
                              .shuffle = true,
                              .drop_last = true,
                              .limit = config.limit.value_or(0),
                              .seed = config.seed,
                              .num_workers = static_cast<int>(config.num_workers),
                              .transform = opened.train_transform,
                              .device = place};
  train = std::make_unique<data::DataLoader>(opened.train, loading);
  loading.shuffle = loading.drop_last = false;
  loading.limit = 0;
  loading.transform = opened.test_transform;
  test = std::make_unique<data::DataLoader>(opened.test, loading);
  micro = std::make_unique<Micro>(make_steps());
}

void Trainer::State::set_pixels(const std::vector<float>& means, const std::vector<float>& deviations) {
  if (means.size() != static_cast<size_t>(opened.image[2]) || deviations.size() != means.size())
    throw_error<DataError>("[train] the weights were trained on images of {} channels, {} has {}", means.size(),
                           opened.title, opened.image[2]);
  mean = Tensor::from<float>(means, {opened.image[2]}, place);
  deviation = Tensor::from<float>(deviations, {opened.image[2]}, place);
}

Trainer::State::Micro Trainer::State::make_steps() {
  auto forward = [this](const Tensor& input, const Tensor& label) {
    // Under mixup a label is a share of each class.
    bool mixed = label.dtype() == DType::f32;
    Tensor logits = logits_of(input), target = mixed ? argmax(label, 1) : targets_of(label);
    Tensor loss =
        mixed ? bonfire::mean(sum(log_softmax(logits, 1) * label, {1})) * -1.0 : cross_entropy(logits, target);
    (loss * (1.0 / static_cast<double>(config.strategy.accumulate_steps))).backward();
    std::vector<Tensor> results{loss, top_k_correct(logits, target)};
    if (opened.is_text()) results.push_back(count_targets(target));  // of images it is the batch
    return results;
  };
  return {compile(forward), compile([this, forward](const Tensor& input, const Tensor& label) {
            std::vector<Tensor> results = forward(input, label);
            if (config.clip_grad_norm) optim::clip_grad_norm(optimizer->parameters(), Scalar(*config.clip_grad_norm));
            optimizer->step();
            optimizer->clear_grad();
            return results;
          })};
}

// --- checkpoints -----------------------------------------------------------------------------------------------------

// `resume` may name a checkpoint, a run, or say auto for the newest run of the output folder.
std::optional<fs::path> Trainer::State::checkpoint_to_resume() {
  if (config.resume.empty()) return {};
  std::vector<fs::path> places;
  if (config.resume == "auto") {
    std::vector<std::pair<int, fs::path>> runs;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(config.output, ignored))
      if (int number = std::atoi(entry.path().filename().c_str()); number > 0) runs.emplace_back(number, entry.path());
    std::sort(runs.rbegin(), runs.rend());
    for (const auto& [number, run] : runs) places.push_back(run);
    if (places.empty()) return {};  // nothing to resume yet: begin
  } else {
    places.push_back(config.resume);
  }
  for (const fs::path& run : places) {
    if (fs::exists(run / "manifest.json")) {
      if (auto damage = damage_of(run))
        throw_error<DataError>("[train] the checkpoint {} is damaged: {}", run.string(), *damage);
      folder = run.parent_path().parent_path();
      return run;
    }
    std::vector<std::string> skipped;
    std::optional<fs::path> found = newest_checkpoint(run / "checkpoints", &skipped);
    for (const std::string& text : skipped)
      for (auto& reporter : reporters) reporter->note("skipped a damaged checkpoint: " + text);
    if (!found) continue;
    folder = run;
    return found;
  }
  if (config.resume == "auto") return {};
  throw_error<ConfigError>(
      "[train] there is no whole checkpoint in '{}'; resume wants a run's folder or a checkpoint's", config.resume);
}

void Trainer::State::restore(const fs::path& checkpoint) {
  nn::load_state_dict(model->state_dict(), weights_file(checkpoint));
  nn::load_state_dict(optimizer_state(*optimizer), optimizer_file(checkpoint));
  try {
    nlohmann::json state = nlohmann::json::parse(read_checkpoint_state(checkpoint));
    step = state.at("step");
    train->seek({state.at("loader").at("epoch"), state.at("loader").at("batch")});
    random_state().step = state.at("random_step");
    best_top1 = state.at("best_top1");
    last_top1 = state.at("last_top1");
    evaluations_without_gain = state.at("evaluations_without_gain");
    best_checkpoint = folder / "checkpoints" / state.at("best_checkpoint").get<std::string>();
    runtime::set_tuning_record(state.at("kernels").dump());
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[train] {}/state.json: {}", checkpoint.string(), error.what());
  }
  last_checkpoint = checkpoint;
}

void Trainer::State::save() {
  synchronize();
  data::LoaderPosition position = train->position();
  std::string name = checkpoint_name(step);
  bool best = !best_checkpoint.empty() && best_checkpoint.filename() == name;
  nlohmann::json state{{"step", step},
                       {"loader", {{"epoch", position.epoch}, {"batch", position.batch}}},
                       {"random_step", random_state().step},
                       {"best_top1", best_top1},
                       {"last_top1", last_top1},
                       {"evaluations_without_gain", evaluations_without_gain},
                       {"best_checkpoint", best_checkpoint.filename().string()},
                       {"kernels", nlohmann::json::parse(runtime::tuning_record())}};
  last_checkpoint =
      save_checkpoint(folder / "checkpoints", step, {model->state_dict(), optimizer_state(*optimizer), state.dump(1)},
                      config.keep_last, best_checkpoint);
  if (best)
    nn::save_state_dict(model->state_dict(), folder / "best.safetensors",
                        {{"model", config.model},
                         {"mean", nlohmann::json(opened.mean).dump()},
                         {"deviation", nlohmann::json(opened.deviation).dump()}});
}

// --- the loop --------------------------------------------------------------------------------------------------------

void Trainer::State::train_epoch(int64_t epoch) {
  optim::Schedule schedule{.kind = optim::parse_schedule_kind(config.schedule),
                           .lr = config.lr,
                           .milestones = config.milestones,
                           .gamma = config.gamma,
                           .total_steps = static_cast<double>(config.epochs) - config.warmup_epochs,
                           .warmup_steps = config.warmup_epochs,
                           .warmup_start_lr = config.warmup_start_lr};
  auto steps_per_epoch = static_cast<double>(train->batches_per_epoch());
  std::deque<std::vector<Tensor>> pending;  // results that nobody has waited for
  double loss = 0, correct = 0, targets = 0;
  int64_t samples = 0;
  Clock::time_point since = Clock::now();
  double waited = train->seconds_waited();

  auto read_one = [&] {
    double count = opened.is_text() ? pending.front()[2].item() : static_cast<double>(config.batch_size);
    loss += pending.front()[0].item() * count;
    correct += pending.front()[1].item();
    targets += count;
    samples += config.batch_size;
    pending.pop_front();
  };
  auto report = [&] {
    while (!pending.empty()) read_one();
    if (samples == 0) return;
    double seconds = std::max(seconds_since(since), 1e-9);
    tell(&Reporter::step, StepReport{.epoch = epoch + 1,
                                     .step = step,
                                     .loss = loss / targets,
                                     .top1 = correct / targets,
                                     .lr = optimizer->lr(),
                                     .samples_per_second = static_cast<double>(samples) / seconds,
                                     .data_wait = (train->seconds_waited() - waited) / seconds});
    loss = correct = targets = 0;
    samples = 0;
    since = Clock::now();
    waited = train->seconds_waited();
  };

  // Gradients never add up across a checkpoint: the last batch of an epoch updates, and a stop waits for an update.
  bool updated = true;
  while (train->position().epoch == epoch && !(stop_requested && updated)) {
    int64_t batch = train->position().batch + 1;
    auto [input, label] = train->next();
    optimizer->set_lr(schedule.at(static_cast<double>(step) / steps_per_epoch));
    ++step;
    updated = batch % config.strategy.accumulate_steps == 0 || batch == train->batches_per_epoch();
    pending.push_back(updated ? micro->update(input, label) : micro->add(input, label));
    if (pending.size() > 2) read_one();
    if (step % config.log_freq == 0) report();
  }
  report();
}

// Counts what is taken for what, and keeps some images: all wrong ones until there are enough, and a few right ones.
void Trainer::State::judge(const Tensor& logits, const Tensor& label, int64_t first, EvaluationReport& report) const {
  if (opened.is_text()) return;
  constexpr size_t kWrong = 16, kRight = 8;
  auto classes = static_cast<size_t>(opened.classes);
  std::vector<float> shares = softmax(logits.to(DType::f32), -1).to_vector<float>();
  std::vector<int64_t> labels = label.to_vector<int64_t>();
  report.confusion.resize(classes * classes);
  auto wrong = static_cast<size_t>(std::count_if(report.predictions.begin(), report.predictions.end(),
                                                 [](const Prediction& p) { return p.label != p.predicted; }));
  size_t right = report.predictions.size() - wrong;
  for (size_t i = 0; i < labels.size(); ++i) {
    auto row = std::span(shares).subspan(i * classes, classes);
    auto predicted = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    ++report.confusion[static_cast<size_t>(labels[i]) * classes + predicted];
    bool is_wrong = labels[i] != static_cast<int64_t>(predicted);
    if (is_wrong ? wrong++ >= kWrong : right++ >= kRight) continue;
    int64_t index = first + static_cast<int64_t>(i);
    Prediction kept{index, labels[i], static_cast<int64_t>(predicted), row[predicted], opened.test->get(index).input};
    report.predictions.insert(
        is_wrong ? report.predictions.begin() + static_cast<int64_t>(wrong) - 1 : report.predictions.end(),
        std::move(kept));
  }
}

EvaluationReport Trainer::State::measure(int64_t epoch) const {
  NoGrad no_grad;
  model->eval();
  double loss = 0, first = 0, fifth = 0, targets = 0;
  EvaluationReport report{.epoch = epoch + 1, .step = step};
  int64_t five = std::min<int64_t>(5, opened.classes);
  for (const auto& [input, label] : test->epoch(epoch)) {
    Tensor logits = logits_of(input), target = targets_of(label), counted = count_targets(target);
    Tensor mean_loss = cross_entropy(logits, target), top1 = top_k_correct(logits, target);
    Tensor top5 = top_k_correct(logits, target, five);
    judge(logits, label, static_cast<int64_t>(targets), report);
    double count = counted.item();
    loss += mean_loss.item() * count;
    first += top1.item();
    fifth += top5.item();
    targets += count;
  }
  model->train();
  report.loss = loss / targets;
  report.top1 = first / targets;
  report.top5 = fifth / targets;
  return report;
}

bool Trainer::State::evaluate(int64_t epoch) {
  EvaluationReport report = measure(epoch);
  last_top1 = report.top1;
  bool best = last_top1 > best_top1;
  if (best) {
    best_top1 = last_top1;
    best_checkpoint = folder / "checkpoints" / checkpoint_name(step);
  }
  evaluations_without_gain = best ? 0 : evaluations_without_gain + 1;
  report.best = best;
  tell(&Reporter::evaluated, report);
  return !config.early_stop || evaluations_without_gain < *config.early_stop;
}

RunBegins Trainer::State::beginning(const std::string& resumed_from) const {
  RunBegins run{.folder = folder,
                .model = config.model,
                .data = opened.title,
                .place = to_string(place),
                .resumed_from = resumed_from,
                .train_samples = train->samples(),
                .test_samples = test->samples(),
                .unit = opened.is_text() ? "sequences" : "images",
                .epochs = config.epochs,
                .steps_per_epoch = train->batches_per_epoch(),
                .batch_size = config.batch_size,
                .first_step = step,
                .config = to_yaml(config),
                .modules = nn::to_string(*model),
                .class_names = opened.class_names};
  for (const Parameter& parameter : model->parameters()) run.parameters += parameter.shape().count();
  return run;
}

RunEnds Trainer::State::train_all() {
  Clock::time_point start = Clock::now();
  RunEnds end;
  while (train->position().epoch < config.epochs && !stop_requested && !end.stopped_early) {
    int64_t epoch = train->position().epoch;
    train_epoch(epoch);
    if (train->position().epoch == epoch) break;  // asked to stop inside it
    bool last = epoch + 1 == config.epochs;
    if (last || (epoch + 1) % config.eval_freq == 0) end.stopped_early = !evaluate(epoch);
    bool best = best_checkpoint.filename() == checkpoint_name(step);
    if (last || best || end.stopped_early || (epoch + 1) % config.save_freq == 0) save();
  }
  end.interrupted = stop_requested && train->position().epoch < config.epochs;
  if (end.interrupted) save();
  end.checkpoint = last_checkpoint;
  end.weights = folder / "best.safetensors";
  end.best_top1 = best_top1;
  end.last_top1 = last_top1;
  end.seconds = seconds_since(start);
  return end;
}

RunEnds Trainer::run() {
  State& s = *state_;
  stop_requested = false;
  std::optional<fs::path> resumed = s.checkpoint_to_resume();
  s.prepare();
  if (resumed) {
    s.restore(*resumed);
  } else {
    s.folder = new_run_folder(s.config.output);
  }
  std::string yaml = to_yaml(s.config);
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(yaml))};
  base::write_file_atomically(s.folder / "config.yaml", chunks);
  s.tell(&Reporter::begin, s.beginning(resumed ? resumed->string() : ""));
  RunEnds end = s.train_all();
  s.tell(&Reporter::end, end);
  return end;
}

EvaluationReport Trainer::evaluate(const fs::path& weights) {
  State& s = *state_;
  s.config.init_from.clear();
  s.prepare();
  s.model->load(weights);
  nn::SafetensorsMetadata said = nn::SafetensorsFile::open(weights).metadata();
  try {
    if (said.contains("mean") && !s.opened.is_text())
      s.set_pixels(nlohmann::json::parse(said["mean"]).get<std::vector<float>>(),
                   nlohmann::json::parse(said["deviation"]).get<std::vector<float>>());
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[train] {}: mean and deviation of pixels: {}", weights.string(), error.what());
  }
  return s.measure(0);
}

}  // namespace bonfire::train
