#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/log_file.h"
#include "bonfire/base/private_file.h"
#include "bonfire/graph/engine.h"
#include "bonfire/nn/weights_checksum.h"
#include "bonfire/optim/optimizer_state.h"
#include "bonfire/parallel/gather.h"
#include "bonfire/runtime/tuning.h"
#include "bonfire/train/trainer/trainer_state.h"

namespace bonfire::train {

namespace fs = std::filesystem;

namespace {

// The next number that no run in the folder has.
fs::path new_run_folder(const fs::path& output) {
  std::error_code error;
  auto require = [&](const fs::path& folder) {
    if (error)
      throw_error<ConfigError>("[train] cannot make '{}': {}; choose another output", folder.string(),
                               base::write_problem(error.value()));
  };
  fs::create_directories(output, error);
  require(output);
  for (int number = 1;; ++number) {
    fs::path folder = output / std::to_string(number);
    if (base::make_private_folder(folder, error)) return folder;
    require(folder);
  }
}

std::optional<double> number_in(const nlohmann::json& value) {  // null: none, or one that JSON cannot write
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

// Even resume_anyway cannot put a checkpoint's tensors into what has others.
void require_fitting(const nlohmann::json& state, const Config& config, const std::string& model,
                     const fs::path& checkpoint) {
  if (!state.is_object()) return;
  if (state.value("model", model) != model)
    throw_error<ConfigError>(
        "[train] {} is a checkpoint of {}, this run trains {}; set model={}, or take what fits with init_from and "
        "strict=false",
        checkpoint.string(), state["model"].get<std::string>(), model, state["model"].get<std::string>());
  if (state.value("optimizer", config.optimizer) != config.optimizer)
    throw_error<ConfigError>(
        "[train] {} was trained with optimizer {}, this run has {}; set optimizer={} to go on, or begin anew from its "
        "weights with init_from",
        checkpoint.string(), state["optimizer"].get<std::string>(), config.optimizer,
        state["optimizer"].get<std::string>());
}

}  // namespace

void Trainer::State::restore(const fs::path& checkpoint) {
  nlohmann::json state = nlohmann::json::parse(read_checkpoint_state(checkpoint), nullptr, false);
  require_fitting(state, config, model_name(), checkpoint);
  load_tensors(checkpoint);
  take_run_state(state.dump(), (checkpoint / "state.json").string());
  ledger.note_restart();
  if (is_other_test_data) {
    note("the scores so far are of other test data");
    forget_best();
  }
  last_checkpoint = checkpoint;
}

// What this rank holds of them.
void Trainer::State::load_tensors(const fs::path& checkpoint) {
  auto is_held = [this](const Variable& one) { return holds(one); };
  nn::load_state_dict(model->state_dict(), open_tensors(weights_file(checkpoint)), {.only = is_held});
  optim::load_optimizer_state(*optimizer, open_tensors(optimizer_file(checkpoint)), is_held);
  if (average && base::exists(average_file(checkpoint))) {
    nn::load_state_dict(average->state(), open_tensors(average_file(checkpoint)), {.only = is_held});
  } else if (average) {
    average->begin_anew();
    note("the checkpoint has no running mean of the weights: it begins here, from the weights as they are");
  }
}

void Trainer::State::take_run_state(const std::string& json, const std::string& source) {
  try {
    nlohmann::json state = nlohmann::json::parse(json);
    step = state.at("step");
    train->seek({state.at("loader").at("epoch"), state.at("loader").at("samples")});
    StepContext::current().random.step = state.at("random_step");
    const std::string headline = headline_of(task()).name;
    best_score = number_in(state.at("best_" + headline));
    last_score = number_in(state.at("last_" + headline));
    if (state.contains("test_" + headline)) test_score = number_in(state["test_" + headline]);
    evaluations_without_gain = state.at("evaluations_without_gain");
    best_checkpoint = folder / "checkpoints" / state.at("best_checkpoint").get<std::string>();
    if (auto saved = state.find("ledger"); saved != state.end()) ledger = Ledger::parse(saved->dump());
    if (auto saved = state.find("strategies"); saved != state.end()) fleet::resume_strategies(saved->dump());
    if (auto saved = state.find("local_sgd"); saved != state.end())  // as it was called once
      fleet::resume_strategies(nlohmann::json{{"local_sgd", *saved}}.dump());
    if (is_first_rank() && !runtime::set_tuning_record(state.at("kernels").dump()))
      note("the checkpoint is of another build: kernels are chosen anew, so rounding differs from here on");
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[train] {}: {}", source, error.what());
  }
}

// As the settings say; a run that cuts by itself and goes on in as many stages is cut where it was. A collective call.
std::optional<std::vector<std::string>> Trainer::State::chosen_cut() const {
  if (config.pipeline.cut || !goes_on) return config.pipeline.cut;
  std::string text;
  if (is_first_rank()) {
    const nlohmann::json state = nlohmann::json::parse(read_checkpoint_state(resumed_from), nullptr, false);
    text = state.is_object() ? state.value("cut", nlohmann::json::array()).dump() : "[]";
  }
  const std::vector<std::string> firsts = nlohmann::json::parse(text_of_first_rank(text));
  const int64_t stages = fleet::mesh().size(Axis::pipeline) * chunks_of(config);
  if (static_cast<int64_t>(firsts.size()) + 1 != stages) return {};
  return firsts;
}

// The first rank reads and makes files; the others get from it what they need to know, so they need not share a disk.
// Those that hold slices do: each reads its own.
void Trainer::State::begin_or_resume() {
  if (is_first_rank() && goes_on) {
    resumed_from = take_up(folder, resumed_from);
    restore(resumed_from);
    total_steps = steps_in_all();
    if (!is_complete()) {
      set_later_checkpoints_aside();
      require_best_weights();
    }
  }
  if (is_first_rank() && !goes_on) {
    folder = new_run_folder(config.output);
    lock = std::make_unique<RunLock>(folder);
  }
  if (fleet::world_size() == 1) return;
  folder = text_of_first_rank(folder.string());
  std::string state = text_of_first_rank(run_state());
  if (!is_first_rank()) take_run_state(state, "rank 0");
  if (!goes_on) return;
  runtime::share_tuning(fleet::group());
  if (has_slices()) {
    const fs::path checkpoint = text_of_first_rank(resumed_from.string());
    if (!is_first_rank()) load_tensors(checkpoint);
    return;
  }
  CheckpointSource all = checkpoint_source();
  for (const nn::StateDict& variables : {all.weights, all.optimizer, all.average}) take_values_of_first_rank(variables);
}

int64_t Trainer::State::steps_in_all() const {
  return config.steps.value_or(step + train->batches_until(config.epochs));
}

// A run that goes back to an earlier checkpoint is what it was then: what it has saved since would be taken for newer,
// and the best weights since for its own. Nothing of it is lost.
void Trainer::State::set_later_checkpoints_aside() {
  std::vector<fs::path> later = checkpoints_after(folder / "checkpoints", step);
  std::erase_if(later, [&](const fs::path& one) { return one.filename() == resumed_from.filename(); });
  if (later.empty()) return;
  const fs::path aside = new_folder_aside(folder), best = folder / "best.safetensors";
  if (base::exists(best)) move_into(aside, best);
  for (const fs::path& checkpoint : later) move_into(aside, checkpoint);
  note(fmt::format("{} goes on from step {}: what was saved after it is in {} now", folder.string(), step,
                   aside.string()));
}

// Of the best score so far: from its checkpoint, where they were set aside, also by one that was killed meanwhile.
void Trainer::State::require_best_weights() {
  const fs::path best = folder / "best.safetensors";
  if (!best_score || base::exists(best)) return;
  const fs::path average = average_file(best_checkpoint), weights = weights_file(best_checkpoint);
  const fs::path& was_best = base::exists(average) ? average : weights;
  const bool is_whole = base::exists(best_checkpoint) && !damage_of(best_checkpoint);
  if (!is_whole || !base::exists(was_best)) return forget_best();  // the latter: it is in parts
  const std::vector<std::byte> bytes = base::read_file(was_best);
  const std::span<const std::byte> chunks[] = {bytes};
  base::write_file_atomically(best, chunks);
}

void Trainer::State::forget_best() {
  best_score.reset();
  best_checkpoint.clear();
  evaluations_without_gain = 0;
  note("the best weights are looked for anew from here on");
}

bool Trainer::State::has_slices() const {
  if (stages) return true;
  const CheckpointSource all = checkpoint_source();
  int64_t count = 0;
  for (const nn::StateDict* list : {&all.weights, &all.optimizer, &all.average})
    for (const auto& [name, variable] : *list) count += variable.slice().is_all() ? 0 : 1;
  add_over_ranks(std::span(&count, 1));
  return count > 0;
}

void Trainer::State::make_writer() {
  const bool has_parts = fleet::world_size() > 1 && has_slices();
  if (!has_parts && !is_first_rank()) return;
  CheckpointWriter::Options options{.keep = config.keep_last, .timeline = timeline.get()};
  if (has_parts) options.ranks = fleet::group().split(0);
  writer = std::make_unique<CheckpointWriter>(folder / "checkpoints", options);
  writes_together = has_parts;
  writer->prepare(checkpoint_source());
}

CheckpointSource Trainer::State::checkpoint_source() const {
  return {held_of(model->state_dict()), held_of(optim::state_dict(*optimizer)),
          average ? held_of(average->state()) : nn::StateDict{}};
}

std::string Trainer::State::run_state() const {
  data::LoaderPosition position = train->position();
  const std::string headline = headline_of(task()).name;
  auto number = [](std::optional<double> score) { return score ? nlohmann::json(*score) : nlohmann::json(); };
  nlohmann::json state{{"model", model_name()},
                       {"optimizer", config.optimizer},
                       {"step", step},
                       {"loader", {{"epoch", position.epoch}, {"samples", position.samples}}},
                       {"random_step", StepContext::current().random.step},
                       {"best_" + headline, number(best_score)},
                       {"last_" + headline, number(last_score)},
                       {"evaluations_without_gain", evaluations_without_gain},
                       {"best_checkpoint", best_checkpoint.filename().string()},
                       {"ledger", nlohmann::json::parse(ledger.json())},
                       {"fingerprint", to_json(fingerprint)},
                       {"kernels", nlohmann::json::parse(runtime::tuning_record())}};
  if (test_score) state["test_" + headline] = *test_score;
  if (stages) state["cut"] = stages->cut()->firsts();
  if (nlohmann::json strategies = nlohmann::json::parse(fleet::strategy_state()); !strategies.empty())
    state["strategies"] = std::move(strategies);
  return state.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Weights that ranks have slices of, as one file of the first rank. A collective call where there is one to write.
void Trainer::State::save_gathered(const WeightsFile& file) const {
  if (file.path.empty()) return;
  if (stages) return save_from_stages(file);
  const nn::StateDict state = average ? average->state() : model->state_dict();
  std::deque<std::vector<std::byte>> memory;
  std::vector<nn::TensorEntry> entries;
  for (const auto& [name, variable] : state) {
    const Tensor whole = fleet::gather(variable);
    if (!is_first_rank()) continue;
    whole.copy_to_host(memory.emplace_back(whole.spec().bytes()));
    entries.push_back({name, whole.dtype(), whole.shape(), memory.back()});
  }
  if (is_first_rank()) nn::write_safetensors(file.path, entries, nn::with_checksum(entries, file.metadata));
}

void Trainer::State::save() {
  compare_replicas();
  saved_step = step;
  if (sample_trace) sample_trace->flush();  // before ranks meet: then all traces reach as far as the checkpoint
  if (fleet::world_size() > 1) runtime::share_tuning(fleet::group());  // ranks have batches of other sizes, too
  if (!is_first_rank() && !writes_together) return;
  if (is_first_rank()) show_saving();
  if (stages) share_counts();
  CheckpointSource source = checkpoint_source();
  source.state = run_state();
  source.metadata = weights_metadata();
  WeightsFile best;
  if (!best_checkpoint.empty() && best_checkpoint.filename() == checkpoint_name(step))
    best = {folder / "best.safetensors", source.metadata};
  if (writes_together) {
    best.path = text_of_first_rank(best.path.string());
    save_gathered(std::exchange(best, {}));
  }
  last_checkpoint = writer->save(step, source, best_checkpoint, best);
}

}  // namespace bonfire::train
