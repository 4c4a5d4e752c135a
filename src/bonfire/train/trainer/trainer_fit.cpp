#include <set>

#include "bonfire/base/error.h"
#include "bonfire/base/hash.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

namespace {

// The program has said all that by what it gives the trainer.
void refuse_settings_of_known_tasks(const Config& config) {
  auto is_of_them = [](const std::string& key) {
    return std::ranges::find(kKeysOfKnownTasks, key) != std::end(kKeysOfKnownTasks);
  };
  std::set<std::string> given;
  for (const std::string& key : config.given)
    if (is_of_them(key)) given.insert(key);
  const auto settings = settings_of(config), usual = settings_of(Config());
  for (size_t i = 0; i < settings.size(); ++i)
    if (settings[i] != usual[i] && is_of_them(settings[i].first)) given.insert(settings[i].first);
  if (!given.empty())
    throw_error<ConfigError>(
        "[train] {} has no meaning here: model, task and data are what the program gives the trainer; leave it out",
        *given.begin());
}

// They are keys beside others in logs.
void require_names_of_metrics(const Task& task) {
  std::set<std::string> names{"event", "epoch", "step", "loss", "lr", "on", "best", "ends_epoch", "samples_per_second"};
  for (const Metric& metric : task.metrics())
    if (metric.name.empty() || !names.insert(metric.name).second)
      throw_error<ConfigError>("[train] task '{}': a metric is called '{}', expected a name that nothing else has",
                               task.name(), metric.name);
}

void require_samples(const std::shared_ptr<const data::Dataset>& samples, const char* what) {
  if (samples == nullptr) throw_error<ConfigError>("[train] fit() was given no {} data", what);
  if (samples->size() == 0) throw_error<DataError>("[train] the {} data has no samples", what);
}

}  // namespace

namespace {

// What scores are of.
DataContent content_of_both(const data::Dataset& validation, const data::Dataset& test) {
  const DataContent first = content_of(validation), second = content_of(test);
  base::Hash128 hash;
  hash.mix(std::string_view(first.hash));
  hash.mix(std::string_view(second.hash));
  return {first.samples + second.samples, fmt::format("{:016x}{:016x}", hash.high, hash.low)};
}

}  // namespace

std::string OwnParts::model_name() const {
  const std::string tree = nn::to_string(model);
  return tree.substr(0, tree.find('('));
}

std::string OwnParts::structure() const {
  base::Hash128 hash;
  hash.mix(std::string_view(nn::to_string(model)));
  for (const auto& [name, variable] : model.state_dict())
    hash.mix(std::string_view(fmt::format("{} {} {}", name, name_of(variable.dtype()), to_string(variable.shape()))));
  return fmt::format("{} (hash of its structure {:016x})", model_name(), hash.low);
}

Trainer::Trainer(Config config, models::Model model, std::shared_ptr<const Task> task)
    : state_(std::make_unique<State>()) {
  if (task == nullptr) throw_error<ConfigError>("[train] the trainer was given no task; train::make_task() makes one");
  require_names_of_metrics(*task);
  refuse_settings_of_known_tasks(config);
  state_->config = std::move(config);
  state_->own = OwnParts{.model = std::move(model), .task = std::move(task)};
  if (state_->config.resume.empty()) state_->use_settings();  // else with those of the run
}

RunEnds Trainer::fit(std::shared_ptr<const data::Dataset> train, std::shared_ptr<const data::Dataset> validation,
                     FitOptions options) {
  if (!state_->own)
    throw_error<ConfigError>(
        "[train] this trainer trains what its configuration names: call run(), or make it with a model and a task");
  require_samples(train, "training");
  require_samples(validation, "validation");
  if (options.test != nullptr) require_samples(options.test, "test");
  OwnParts& own = *state_->own;
  own.train = std::move(train);
  own.validation = std::move(validation);
  own.options = std::move(options);
  return run_whole();
}

EvaluationReport Trainer::evaluate(const std::filesystem::path& weights, std::shared_ptr<const data::Dataset> samples) {
  if (!state_->own)
    throw_error<ConfigError>("[train] this trainer evaluates the test data that its configuration names");
  require_samples(samples, "evaluation");
  Trainer other(state_->config, state_->own->model, state_->own->task);
  OwnParts& own = *other.state_->own;
  own.train = own.validation = std::move(samples);
  return other.evaluate_as(weights, EvaluationReport::On::validation);
}

OpenedData Trainer::State::own_data() const {
  OpenedData data;
  data.train = own->train;
  data.validation = own->validation;
  data.test = own->options.test;
  data.task = own->task;
  data.title = own->options.name;
  data.train_transform = own->options.transform;
  data.train_content = content_of(*own->train);
  data.test_content = own->options.test == nullptr ? content_of(*own->validation)
                                                   : content_of_both(*own->validation, *own->options.test);
  data.class_names = own->train->class_names();
  data.classes = static_cast<int64_t>(data.class_names.size());
  const data::Sample first = own->train->get(0);
  data.sample_bytes = static_cast<double>(first.input.bytes.size() + first.label.bytes.size());
  return data;
}

nn::SafetensorsMetadata Trainer::State::weights_metadata() const {
  nn::SafetensorsMetadata metadata = task().metadata();
  metadata["model"] = model_name();
  if (own) metadata[kTaskOfProgram] = task().name();
  return metadata;
}

Tensor Trainer::State::example() const {
  const data::Sample sample = (opened.test ? opened.test : opened.validation)->get(0);
  Shape shape{1};
  for (int i = 0; i < sample.input.shape.rank(); ++i) shape.push_back(sample.input.shape[i]);
  TensorSpec given;
  {
    NoGrad no_grad;
    Trace trace;
    TraceScope scope(trace);
    given = task().input(Tensor::from_bytes(sample.input.bytes, {shape, sample.input.dtype, place})).spec();
  }
  return Tensor::from_bytes(std::vector<std::byte>(given.bytes()), given);
}

}  // namespace bonfire::train
