#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/train/trainer_state.h"

namespace bonfire::train {

namespace fs = std::filesystem;

namespace {

constexpr size_t kTenths = 10;                     // of confidence
constexpr std::ptrdiff_t kWrong = 16, kRight = 8;  // images that are kept

// Where a prediction goes among those kept, the most confident of the wrong ones first; -1: nowhere.
std::ptrdiff_t place_among(const std::vector<Prediction>& kept, double confidence, bool is_right) {
  const auto rights = std::find_if(kept.begin(), kept.end(), [](const auto& p) { return p.label == p.predicted; });
  if (is_right) return kept.end() - rights < kRight ? kept.end() - kept.begin() : -1;
  auto less_sure = [&](const Prediction& p) { return p.probability < confidence; };
  const auto place = std::find_if(kept.begin(), rights, less_sure) - kept.begin();
  return place < kWrong ? place : -1;
}

}  // namespace

// Counts what is taken for what and how confidently, and keeps some images: those that are wrong with the highest
// confidence, and a few right ones. `first`: where the batch begins in the data, of which this rank has every
// so-manieth sample.
void Trainer::State::judge(const Tensor& logits, const Tensor& label, int64_t first, EvaluationReport& report) const {
  if (opened.is_text()) return;
  std::vector<Prediction>& kept = report.predictions;
  auto classes = static_cast<size_t>(opened.classes);
  std::vector<float> shares = softmax(logits.to(DType::f32), -1).to_vector<float>();
  std::vector<int64_t> labels = label.to_vector<int64_t>();
  for (size_t i = 0; i < labels.size(); ++i) {
    auto row = std::span(shares).subspan(i * classes, classes);
    auto predicted = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    ++report.confusion[static_cast<size_t>(labels[i]) * classes + predicted];
    const bool is_right = labels[i] == static_cast<int64_t>(predicted);
    const auto tenth = std::min(kTenths - 1, static_cast<size_t>(row[predicted] * static_cast<float>(kTenths)));
    ++report.by_confidence[tenth];
    if (!is_right) ++report.wrong_by_confidence[tenth];
    const std::ptrdiff_t place = place_among(kept, row[predicted], is_right);
    if (place < 0) continue;
    const bool on_test = report.on == EvaluationReport::On::test;
    int64_t index = first + (on_test ? test : validation)->share().place(static_cast<int64_t>(i));
    kept.insert(kept.begin() + place, {index, labels[i], static_cast<int64_t>(predicted), row[predicted],
                                       (on_test ? opened.test : opened.validation)->get(index).input});
    if (!is_right && std::ssize(kept) > kWrong && kept[kWrong].label != kept[kWrong].predicted)
      kept.erase(kept.begin() + kWrong);
  }
}

// Of running statistics, which each rank keeps of its own samples, the first rank's are evaluated and saved.
void Trainer::State::share_buffers() const {
  if (fleet::world_size() == 1) return;
  std::set<const VariableState*> trained;
  for (const Parameter& parameter : model->parameters()) trained.insert(&parameter.state());
  nn::StateDict own = model->state_dict(), mean = average ? average->model().state_dict() : nn::StateDict{}, buffers;
  for (size_t i = 0; i < own.size(); ++i) {
    if (trained.contains(&own[i].variable.state())) continue;
    buffers.push_back(own[i]);
    if (average) buffers.push_back(mean[i]);
  }
  take_values_of_first_rank(buffers);
}

// What the optimizer remembers and the running mean of weights too: a run that is resumed gives it to all ranks.
void Trainer::State::share_weights() {
  if (!local || !local->local()) return;
  std::vector<Variable> more;
  for (const auto& [name, variable] : optimizer->state())
    if (is_floating(variable.dtype())) more.push_back(variable);
  if (average)
    for (const Parameter& parameter : average->model().parameters()) more.push_back(parameter);
  fleet::average(more);
}

EvaluationReport Trainer::State::measure(const models::Model& judged, EvaluationReport::On on, int64_t epoch) const {
  NoGrad no_grad;
  share_buffers();
  judged.eval();
  data::DataLoader& samples = on == EvaluationReport::On::test ? *test : *validation;
  double loss = 0;
  int64_t first = 0, fifth = 0, targets = 0, begin = 0;  // begin: of the batch, in samples
  EvaluationReport report{.on = on, .epoch = epoch + 1, .step = step};
  if (!opened.is_text()) {
    report.confusion.resize(static_cast<size_t>(opened.classes * opened.classes));
    report.by_confidence.resize(kTenths);
    report.wrong_by_confidence.resize(kTenths);
  }
  int64_t five = std::min<int64_t>(5, opened.classes);
  for (int64_t batches = 0; const auto& [input, label] : samples.epoch(epoch)) {
    show(Progress::Doing::evaluating, epoch, batches++, samples.batches_per_epoch());
    data::Share share = samples.share();
    if (share.own > 0) {
      Tensor logits = logits_of(judged, input), target = targets_of(label), counted = count_targets(target);
      Tensor mean_loss = cross_entropy(logits, target), top1 = top_k_correct(logits, target);
      Tensor top5 = top_k_correct(logits, target, five);
      judge(logits, label, begin, report);
      auto count = static_cast<int64_t>(counted.item());
      if (count > 0) loss += mean_loss.item() * static_cast<double>(count);
      first += static_cast<int64_t>(top1.item());
      fifth += static_cast<int64_t>(top5.item());
      targets += count;
    }
    begin += share.all;
  }
  model->train();  // and the mean of its weights stays as it is
  int64_t counts[] = {first, fifth, targets};
  add_over_ranks(counts);
  add_over_ranks({&loss, 1});
  for (std::vector<int64_t>* counted : {&report.confusion, &report.by_confidence, &report.wrong_by_confidence})
    add_over_ranks(*counted);
  auto all = static_cast<double>(counts[2]);
  report.loss = loss / all;
  report.top1 = static_cast<double>(counts[0]) / all;
  report.top5 = static_cast<double>(counts[1]) / all;
  return report;
}

bool Trainer::State::evaluate(int64_t epoch, bool ends_epoch) {
  Span span(timeline.get(), "training loop", "evaluate");
  EvaluationReport report =
      measure(evaluated_model(), validation ? EvaluationReport::On::validation : EvaluationReport::On::test, epoch);
  report.ends_epoch = ends_epoch;
  span.end();
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

// Once, before the last checkpoint is saved. Where the best weights are not those at hand they are read into a model of
// their own, so that the run can still go on from its last.
void Trainer::State::evaluate_best_on_test_data(int64_t epoch) {
  Span span(timeline.get(), "training loop", "evaluate on the test data");
  std::optional<models::Model> best;
  if (best_checkpoint.filename() != checkpoint_name(step)) {
    const RandomState before = StepContext::current().random;  // making a model draws weights
    best = models::make(config.model, model_options());
    StepContext::current().random = before;
    if (writer) writer->finish();
    if (is_first_rank()) best->load(folder / "best.safetensors");
    best->to(place);
    take_values_of_first_rank(best->state_dict());
  }
  EvaluationReport report = measure(best ? *best : evaluated_model(), EvaluationReport::On::test, epoch);
  span.end();
  report.best = true;
  report.ends_epoch = train->position().epoch != epoch;
  test_top1 = report.top1;
  tell(&Reporter::evaluated, report);
}

void Trainer::State::take_pixels_from(const fs::path& weights) {
  nn::SafetensorsMetadata said = open_tensors(weights).metadata();
  try {
    if (said.contains("mean") && !opened.is_text())
      set_pixels(nlohmann::json::parse(said["mean"]).get<std::vector<float>>(),
                 nlohmann::json::parse(said["deviation"]).get<std::vector<float>>());
  } catch (const nlohmann::json::exception& error) {
    throw_error<DataError>("[train] {}: mean and deviation of pixels: {}", weights.string(), error.what());
  }
}

EvaluationReport Trainer::evaluate(const fs::path& weights) {
  State& s = *state_;
  s.config.init_from.clear();
  s.config.ema_decay.reset();  // the weights are what they are
  s.prepare();
  nn::load_state_dict(s.model->state_dict(), open_tensors(weights));
  s.take_pixels_from(weights);
  return s.measure(s.evaluated_model(), EvaluationReport::On::test, 0);
}

}  // namespace bonfire::train
