#include "bonfire/train/tasks/classification.h"

#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/train/tasks/class_judge.h"

namespace bonfire::train {

namespace {

class Classification final : public Task {
 public:
  explicit Classification(ClassificationOptions options) : options_(std::move(options)) {}

  std::string name() const override { return "classification of " + options_.unit; }
  std::string unit() const override { return options_.unit; }
  Tensor loss(const Outputs& outputs, const Tensor& label) const override { return cross_entropy(outputs[0], label); }
  Tensor targets(const Tensor& label) const override {  // what is ignored is negative
    return options_.ignores ? sum(greater_equal(label, 0).to(DType::i64)) : Tensor();
  }
  std::vector<Metric> metrics() const override { return class_metrics(options_.classes); }
  std::vector<Tensor> sums(const Outputs& outputs, const Tensor& label) const override {
    return class_sums(outputs[0], label);
  }
  std::vector<Tensor> training_sums(const Outputs& outputs, const Tensor& label) const override {
    return {top_k_correct(outputs[0], label)};
  }
  std::unique_ptr<Judge> judge(const data::Dataset& samples) const override {
    ClassJudgeOptions judging{.classes = options_.classes, .ignores = options_.ignores};
    if (options_.words)
      judging.show = [words = options_.words](const data::Sample& sample, Prediction& prediction) {
        prediction.words = words(sample);
      };
    return class_judge(samples, judging);
  }

 private:
  ClassificationOptions options_;
};

}  // namespace

std::shared_ptr<const Task> classification(const ClassificationOptions& options) {
  if (options.classes < 1)
    throw_error<ConfigError>("[task] classification into {} classes, expected 1 or more", options.classes);
  return std::make_shared<Classification>(options);
}

}  // namespace bonfire::train
