#include "bonfire/train/tasks/boxes.h"

#include "bonfire/data/boxed_glyphs.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/train/data/image_run.h"
#include "bonfire/train/tasks/class_judge.h"

namespace bonfire::train {

namespace {

using data::Split;

constexpr int64_t kCoordinates = 2;  // channels
// A step of the loss of a box is as large as one of its class: errors of a box are some hundredths.
constexpr double kBoxWeight = 10, kBoxBeta = 0.1;

Tensor side(const Tensor& boxes, int64_t which) { return squeeze(slice(boxes, 1, which, which + 1), 1); }  // [N]
Tensor class_of(const Tensor& label) { return side(label, 0).to(DType::i64); }
Tensor box_of(const Tensor& label) { return slice(label, 1, 1); }  // [N, 4]

// Where each pixel is, from -1 at the left (top) to 1: the model takes a mean over all places at its end, after which
// nothing else would tell them apart (Liu et al., "An intriguing failing of convolutional neural networks and the
// CoordConv solution").
Tensor with_coordinates(const Tensor& images) {  // [N, C, H, W] → [N, C + 2, H, W]
  const int64_t height = images.size(2), width = images.size(3);
  std::vector<float> across, down;
  auto place = [](int64_t i, int64_t extent) {
    return (2 * static_cast<float>(i) + 1) / static_cast<float>(extent) - 1;
  };
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      across.push_back(place(x, width));
      down.push_back(place(y, height));
    }
  auto channel = [&](const std::vector<float>& values) {
    return broadcast_to(Tensor::from<float>(values, {1, 1, height, width}, images.device()),
                        {images.size(0), 1, height, width});
  };
  return concat({images, channel(across), channel(down)}, 1);
}

class Boxes final : public Task {
 public:
  explicit Boxes(ImageInput input) : input_(std::move(input)) {}

  std::string name() const override { return "boxes and classes"; }
  std::string unit() const override { return "images"; }
  Tensor input(const Tensor& batch) const override { return with_coordinates(input_.normalized(batch)); }

  Tensor loss(const Outputs& outputs, const Tensor& label) const override {
    return cross_entropy(outputs[0], class_of(label)) +
           smooth_l1_loss(outputs[1], box_of(label), {.beta = kBoxBeta}) * kBoxWeight;
  }

  std::vector<Metric> metrics() const override {
    return {{.name = "mean_iou", .title = "mean IoU", .brief = "IoU", .unit = Metric::Unit::number},
            {.name = "top1", .title = "top-1", .brief = "acc", .quantity = "accuracy"}};
  }
  std::vector<Tensor> sums(const Outputs& outputs, const Tensor& label) const override {
    return {sum(overlap_of(outputs[1], box_of(label))), top_k_correct(outputs[0], class_of(label))};
  }

  std::unique_ptr<Judge> judge(const data::Dataset& samples) const override {
    return class_judge(
        samples, {.classes = static_cast<int64_t>(input_.class_names.size()),
                  .label = class_of,
                  .show = [](const data::Sample& sample, Prediction& prediction) { prediction.image = sample.input; }});
  }
  nn::SafetensorsMetadata metadata() const override { return input_.metadata(); }
  std::shared_ptr<const Task> as_trained(const nn::SafetensorsMetadata& said) const override {
    return boxes(input_.as_trained(said));
  }
  std::string predict_hint() const override { return "IMAGE, to see what it finds in a picture and where"; }

 private:
  ImageInput input_;
};

void refuse_image_changes(const Config& config) {
  Config changed = config;
  changed.mean.reset();  // these two count
  changed.deviation.reset();
  refuse_image_settings(changed);
}

OpenedData open_boxed_glyphs(const Config& config) {
  refuse_image_changes(config);
  refuse_text_settings(config);
  require_generated(config, "images with a box and a class");
  OpenedData data;
  data.title = "generated boxes";
  auto open = [](Split split, int64_t size) {
    return std::make_shared<data::BoxedGlyphs>(data::GlyphsOptions{.split = split, .size = size});
  };
  data.train = open(Split::train, 10'000);
  data.test = open(Split::test, 2'000);
  data.class_names = data.train->class_names();
  data.classes = static_cast<int64_t>(data.class_names.size());
  data.image = {data::BoxedGlyphs::kSide, data::BoxedGlyphs::kSide, 1};
  note_content(data);
  hold_back(config, data);
  set_pixels(config, *data.train, 2'000, data);
  data.model = {.classes = data.classes, .in_channels = data.image[2] + kCoordinates};
  data.sample_bytes = 13 * static_cast<double>(data.image.count());
  data.task =
      boxes({.image = data.image, .mean = data.mean, .deviation = data.deviation, .class_names = data.class_names});
  return data;
}

class BoxAnswerer final : public Answerer {
 public:
  BoxAnswerer(const std::filesystem::path& run, std::span<const std::string> overrides)
      : run_(run, overrides, {.task = "boxes", .more_channels = kCoordinates}) {}

  std::vector<Answer> answers(const std::string& input, size_t most) const override {
    std::vector<Answer> all;
    const std::vector<data::Array> images = run_.open(input);
    auto compute = [&](const models::Model& model, const Tensor& pixels) {
      return model.outputs(with_coordinates(run_.input().normalized(pixels)));
    };
    const std::vector<std::string>& names = run_.input().class_names;
    run_.for_each_batch(images, compute, [&](std::span<const Tensor> results, size_t count) {
      const std::vector<float> values = results[0].to_vector<float>(), boxes = results[1].to_vector<float>();
      const std::vector<float> shares = softmax(results[0].to(DType::f32), -1).to_vector<float>();
      for (size_t i = 0; i < count; ++i) {
        Answer& answer = all.emplace_back(Answer{ImageRun::name_of(input, images.size(), all.size())});
        auto row = [&](const std::vector<float>& of, size_t size) { return std::span(of).subspan(i * size, size); };
        for (const Guess& guess : likeliest(row(values, names.size()), row(shares, names.size()), most))
          answer.guesses.push_back(
              {names[static_cast<size_t>(guess.label)], guess.probability, guess.logit, guess.label});
        const auto box = row(boxes, 4);
        answer.box.assign(box.begin(), box.end());
      }
    });
    return all;
  }

 private:
  ImageRun run_;
};

}  // namespace

std::shared_ptr<const Task> boxes(const ImageInput& input) { return std::make_shared<Boxes>(input); }

Tensor overlap_of(const Tensor& boxes, const Tensor& others) {
  auto length = [](const Tensor& begin, const Tensor& end) { return maximum(end - begin, 0.0); };
  auto area = [&](const Tensor& of) { return length(side(of, 0), side(of, 2)) * length(side(of, 1), side(of, 3)); };
  const Tensor shared = length(maximum(side(boxes, 0), side(others, 0)), minimum(side(boxes, 2), side(others, 2))) *
                        length(maximum(side(boxes, 1), side(others, 1)), minimum(side(boxes, 3), side(others, 3)));
  return shared / maximum(area(boxes) + area(others) - shared, 1e-12);
}

const KnownTask kBoxes{.name = "boxes",
                       .reads = "images with a box and a class",
                       .input_name = "image",
                       .predict_help = "JPEG, PNG or IDX files (these also gzipped)",
                       .open = open_boxed_glyphs,
                       .answerer = [](const std::filesystem::path& run, std::span<const std::string> overrides)
                           -> std::unique_ptr<Answerer> { return std::make_unique<BoxAnswerer>(run, overrides); }};

}  // namespace bonfire::train
