#include "bonfire/train/tasks/image_classification.h"

#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/train/data/image_sizes.h"
#include "bonfire/train/tasks/class_judge.h"
#include "bonfire/train/tasks/predictor.h"

namespace bonfire::train {

namespace {

class ImageClassification final : public Task {
 public:
  explicit ImageClassification(ImageInput input) : input_(std::move(input)) {}

  std::string name() const override { return "image classification"; }
  std::string unit() const override { return "images"; }
  Tensor input(const Tensor& batch) const override { return input_.normalized(batch); }

  Tensor loss(const Outputs& outputs, const Tensor& label) const override {
    const Tensor& logits = outputs[0];
    if (!is_mixed(label)) return cross_entropy(logits, label);
    return mean(sum(log_softmax(logits, 1) * label, {1})) * -1.0;
  }

  std::vector<Metric> metrics() const override { return class_metrics(classes()); }
  std::vector<Tensor> sums(const Outputs& outputs, const Tensor& label) const override {
    return class_sums(outputs[0], label);
  }
  std::vector<Tensor> training_sums(const Outputs& outputs, const Tensor& label) const override {
    return {top_k_correct(outputs[0], is_mixed(label) ? argmax(label, 1) : label)};
  }

  std::unique_ptr<Judge> judge(const data::Dataset& samples) const override {
    return class_judge(samples, {.classes = classes(), .show = [](const data::Sample& sample, Prediction& prediction) {
                                   prediction.image = sample.input;
                                 }});
  }
  void check_model(const models::Model& model, const std::string& name) const override {
    require_size(model, name, input_.image);
  }
  nn::SafetensorsMetadata metadata() const override { return input_.metadata(); }
  std::shared_ptr<const Task> as_trained(const nn::SafetensorsMetadata& said) const override {
    return image_classification(input_.as_trained(said));
  }
  std::string predict_hint() const override { return "IMAGE, to see what it takes a picture for"; }
  std::string data_hint() const override { return "pictures of yours (docs/data.md)"; }

 private:
  static bool is_mixed(const Tensor& label) { return label.dtype() == DType::f32; }
  int64_t classes() const { return static_cast<int64_t>(input_.class_names.size()); }

  ImageInput input_;
};

OpenedData open_classified_images(const Config& config) {
  OpenedData data;
  open_images(config, data);
  data.task = image_classification(
      {.image = data.image, .mean = data.mean, .deviation = data.deviation, .class_names = data.class_names});
  return data;
}

class ImageAnswerer final : public Answerer {
 public:
  ImageAnswerer(const std::filesystem::path& run, std::span<const std::string> overrides)
      : predictor_(run, overrides) {}

  std::vector<Answer> answers(const std::string& input, size_t most) const override {
    std::vector<Answer> all;
    const std::vector<data::Array> images = predictor_.open(input);
    for (const std::vector<Guess>& guesses : predictor_.guesses(images, most)) {
      Answer& answer = all.emplace_back(Answer{ImageRun::name_of(input, images.size(), all.size())});
      for (const Guess& guess : guesses)
        answer.guesses.push_back({predictor_.class_names().at(static_cast<size_t>(guess.label)), guess.probability,
                                  guess.logit, guess.label});
    }
    return all;
  }

 private:
  Predictor predictor_;
};

}  // namespace

std::shared_ptr<const Task> image_classification(const ImageInput& input) {
  return std::make_shared<ImageClassification>(input);
}

const KnownTask kImageClassification{
    .name = "image_classification",
    .reads = "images",
    .input_name = "image",
    .predict_help = "JPEG, PNG or IDX files (these also gzipped)",
    .open = open_classified_images,
    .answerer = [](const std::filesystem::path& run, std::span<const std::string> overrides)
        -> std::unique_ptr<Answerer> { return std::make_unique<ImageAnswerer>(run, overrides); }};

}  // namespace bonfire::train
