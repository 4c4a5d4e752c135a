#include "bonfire/train/tasks/class_judge.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/data/labels.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/train/trainer/between_ranks.h"

namespace bonfire::train {

namespace {

constexpr size_t kTenths = 10;                                    // of confidence
constexpr std::ptrdiff_t kWrongKept = 16, kRightKept = 8;         // samples that are kept
constexpr int64_t kFirst = 5;                                     // of top-5
constexpr int64_t kIgnored = CrossEntropyOptions{}.ignore_index;  // a label that counts for nothing

// Where a prediction goes among those kept, the most confident of the wrong ones first; -1: nowhere.
std::ptrdiff_t place_among(const std::vector<Prediction>& kept, double confidence, bool is_right) {
  const auto rights = std::find_if(kept.begin(), kept.end(), [](const auto& p) { return p.label == p.predicted; });
  if (is_right) return kept.end() - rights < kRightKept ? kept.end() - kept.begin() : -1;
  auto less_sure = [&](const Prediction& p) { return p.probability < confidence; };
  const auto place = std::find_if(kept.begin(), rights, less_sure) - kept.begin();
  return place < kWrongKept ? place : -1;
}

class ClassJudge final : public Judge {
 public:
  ClassJudge(const data::Dataset& samples, ClassJudgeOptions options)
      : samples_(samples), options_(std::move(options)), classes_(static_cast<size_t>(options_.classes)) {
    confusion_.resize(classes_ * classes_);
    by_confidence_.resize(kTenths);
    wrong_by_confidence_.resize(kTenths);
  }

  void add(const Outputs& outputs, const Tensor& label, std::span<const int64_t> indices) override {
    const Tensor target = options_.label ? options_.label(label) : label;
    require_fitting(outputs[0], target);
    std::vector<float> shares = softmax(outputs[0].to(DType::f32), -1).to_vector<float>();
    std::vector<int64_t> labels = target.to_vector<int64_t>();
    for (size_t i = 0; i < labels.size(); ++i)
      if (!options_.ignores || labels[i] != kIgnored)
        count(std::span(shares).subspan(i * classes_, classes_), labels[i], indices[i]);
  }

  void finish(EvaluationReport& report) override {
    for (std::vector<int64_t>* counted : {&confusion_, &by_confidence_, &wrong_by_confidence_}) add_over_data(*counted);
    report.confusion = std::move(confusion_);
    report.by_confidence = std::move(by_confidence_);
    report.wrong_by_confidence = std::move(wrong_by_confidence_);
    report.predictions = std::move(kept_);
  }

 private:
  void require_fitting(const Tensor& logits, const Tensor& target) const {
    if (logits.rank() != 2 || logits.size(1) != options_.classes)
      throw_error<ConfigError>(
          "[class_judge] the first output of the model is {}, expected logits [N, {}]; give the model as many outputs "
          "as the task has classes",
          to_string(logits.spec()), options_.classes);
    if (target.rank() != 1 || target.size(0) != logits.size(0))
      throw_error<ShapeError>("[class_judge] labels are {}, expected a class for each row of logits {}",
                              to_string(target.spec()), to_string(logits.spec()));
  }

  void count(std::span<const float> row, int64_t label, int64_t index) {
    const size_t expected = data::class_index("class_judge", index, label, options_.classes);
    auto predicted = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    ++confusion_[expected * classes_ + predicted];
    const bool is_right = expected == predicted;
    const auto tenth = std::min(kTenths - 1, static_cast<size_t>(row[predicted] * static_cast<float>(kTenths)));
    ++by_confidence_[tenth];
    if (!is_right) ++wrong_by_confidence_[tenth];
    if (!options_.show) return;
    const std::ptrdiff_t place = place_among(kept_, row[predicted], is_right);
    if (place < 0) return;
    Prediction prediction{
        .index = index, .label = label, .predicted = static_cast<int64_t>(predicted), .probability = row[predicted]};
    options_.show(samples_.get(index), prediction);
    kept_.insert(kept_.begin() + place, std::move(prediction));
    if (!is_right && std::ssize(kept_) > kWrongKept && kept_[kWrongKept].label != kept_[kWrongKept].predicted)
      kept_.erase(kept_.begin() + kWrongKept);
  }

  const data::Dataset& samples_;
  ClassJudgeOptions options_;
  size_t classes_;
  std::vector<int64_t> confusion_, by_confidence_, wrong_by_confidence_;
  std::vector<Prediction> kept_;
};

}  // namespace

std::unique_ptr<Judge> class_judge(const data::Dataset& samples, const ClassJudgeOptions& options) {
  return std::make_unique<ClassJudge>(samples, options);
}

std::vector<Metric> class_metrics(int64_t classes, const std::string& of) {
  // Of five classes every one is among the first five.
  return {{.name = "top1", .title = "top-1", .of = of, .brief = "acc", .quantity = "accuracy"},
          {.name = "top5", .title = "top-5", .of = of, .shown = classes > kFirst}};
}

std::vector<Tensor> class_sums(const Tensor& logits, const Tensor& target) {
  return {top_k_correct(logits, target), top_k_correct(logits, target, std::min(kFirst, logits.size(1)))};
}

}  // namespace bonfire::train
