#pragma once
// Small models and batches for them, whatever trains them: by the same rules in f32 and f64.

#include <gtest/gtest.h>

#include <functional>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/models/bert.h"
#include "bonfire/models/gpt2.h"
#include "bonfire/models/lstm_classifier.h"
#include "bonfire/models/resnet.h"
#include "bonfire/models/two_headed.h"
#include "bonfire/parallel/pipeline/pipeline.h"

namespace bonfire::in_stages {

// A model and what is done with it.
struct Net {
  nn::Module module;
  pipeline::Forward forward;  // of {input, label}
};

struct Data {
  Shape input;          // of a row
  int64_t symbols = 0;  // inputs are whole numbers below
  int64_t classes = 4;
  bool labels_rows = false;  // a label for each element of a row
};

struct Subject {
  std::function<Net()> make;
  Data data;
  std::vector<nn::Split> split = {};  // along the tensor axis; empty: as the model's plan says
};

class SmallVgg : public nn::Callable<SmallVgg> {
 public:
  SmallVgg()
      : Callable("SmallVgg"),
        features_(register_module("features", make_features())),
        classifier_(
            register_module("classifier", nn::Sequential({nn::Linear({.in = 8 * 4, .out = 12}), nn::ReLU(),
                                                          nn::Dropout(0.3), nn::Linear({.in = 12, .out = 4})}))) {}
  Tensor forward(const Tensor& x) const { return classifier_(flatten(features_(x), 1)); }

 private:
  static nn::Sequential make_features() {
    nn::Sequential list;
    int64_t in = 2;
    for (int64_t out : {6, 8}) {
      list.push_back(nn::Conv2d({.in = in, .out = out, .kernel = {3}, .padding = {1}}));
      list.push_back(nn::BatchNorm2d({.channels = out}));
      list.push_back(nn::ReLU());
      list.push_back(nn::MaxPool2d({.kernel = {2}}));
      in = out;
    }
    return list;
  }
  nn::Sequential features_, classifier_;
};

template <class Model>
Net classifier_of(const Model& model) {
  return {model, [model](std::span<const Tensor> batch) -> std::vector<Tensor> {
            const Tensor logits = model(batch[0]);
            return {cross_entropy(logits, batch[1]), sum(logits.to(DType::f64))};
          }};
}

// Each element of a row is a text's token, and has a label.
template <class Model>
Net next_token_of(const Model& model, int64_t vocabulary, std::function<Tensor(const Tensor&)> logits_of) {
  return {model, [vocabulary, logits_of = std::move(logits_of)](std::span<const Tensor> batch) -> std::vector<Tensor> {
            return {cross_entropy(reshape(logits_of(batch[0]), {-1, vocabulary}), reshape(batch[1], {-1}))};
          }};
}

inline Subject small_vgg() {
  return {[] { return classifier_of(SmallVgg()); },
          {.input = {2, 8, 8}},
          {{"features.0.*", 0},
           {"features.1.weight", 0},
           {"features.1.bias", 0},
           {"features.1.running_*", 0},
           {"features.4.weight", 1},
           {"classifier.0.*", 0},
           {"classifier.3.weight", 1}}};
}
inline Subject small_resnet() {
  return {[] {
            return classifier_of(
                models::ResNet({.blocks = {1, 1, 1, 1}, .small_images = true}, {.classes = 4, .in_channels = 2}));
          },
          {.input = {2, 16, 16}}};
}
inline Subject small_lstm() {
  return {[] {
            return classifier_of(models::lstm_classifier(
                {.vocabulary = 9, .embedding = 6, .hidden = 8, .layers = 2, .classes = 4, .dropout = 0.2}));
          },
          {.input = {5}, .symbols = 9},
          {{"embedding.weight", 1}, {"fc.weight", 1}}};
}
inline Subject small_bert() {
  return {[] {
            const models::BertForMaskedLM model(
                {.vocabulary = 11, .hidden = 8, .layers = 2, .heads = 2, .intermediate = 12, .positions = 6});
            return next_token_of(model, 11, [model](const Tensor& tokens) {
              return model(tokens, models::BertInputs{.attention_mask = not_equal(tokens, 1).to(DType::i64)});
            });
          },
          {.input = {6}, .symbols = 11, .classes = 11, .labels_rows = true}};
}
// The head is the table of words.
inline Subject small_gpt2() {
  return {[] {
            const models::GPT2LMHeadModel model =
                models::gpt2({.vocabulary = 13, .layers = 2, .heads = 2, .width = 8, .context = 8, .head_multiple = 1});
            return next_token_of(model, 13, [model](const Tensor& tokens) { return model(tokens); });
          },
          {.input = {7}, .symbols = 13, .classes = 13, .labels_rows = true}};
}
inline Subject two_headed() {
  return {[]() -> Net {
            models::TwoHeaded model({.classes = 4, .in_channels = 2});
            return {model, [model](std::span<const Tensor> batch) -> std::vector<Tensor> {
                      const auto [cls, box] = model(batch[0]);
                      const Tensor boxes = mean(square(box));
                      return {cross_entropy(cls, batch[1]) + boxes, boxes};
                    }};
          },
          {.input = {2, 16, 16}}};
}

// Before anything has values: parameters and buffers of f64, by the same rules.
inline void widen(const nn::Module& module) {
  for (const auto& [name, variable] : module.state_dict()) {
    if (!is_floating(variable.dtype())) continue;
    ASSERT_FALSE(variable.state().has_values) << name;
    variable.state().spec.dtype = variable.state().stored.dtype = DType::f64;
  }
}

inline std::vector<Tensor> batch_of(const Data& data, int64_t rows, uint64_t number, Device device,
                                    DType dtype = DType::f32) {
  Shape shape{rows}, label_shape{rows};
  for (int64_t extent : data.input) shape.push_back(extent);
  if (data.labels_rows) label_shape = shape;
  const auto count = static_cast<size_t>(shape.count());
  std::vector<int64_t> labels(static_cast<size_t>(label_shape.count()));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<int64_t>(uniform_at(8, number, i) * static_cast<float>(data.classes));
  const Tensor label = Tensor::from<int64_t>(labels, label_shape, device);
  if (data.symbols > 0) {
    std::vector<int64_t> symbols(count);
    for (size_t i = 0; i < count; ++i)
      symbols[i] = static_cast<int64_t>(uniform_at(7, number, i) * static_cast<float>(data.symbols));
    return {Tensor::from<int64_t>(symbols, shape, device), label};
  }
  std::vector<double> wide(count);
  for (size_t i = 0; i < count; ++i) wide[i] = normal_at(7, number, i);
  if (dtype == DType::f64) return {Tensor::from<double>(wide, shape, device), label};
  return {Tensor::from<float>(std::vector<float>(wide.begin(), wide.end()), shape, device), label};
}

}  // namespace bonfire::in_stages
