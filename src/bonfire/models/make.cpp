#include "bonfire/models/make.h"

#include "bonfire/base/error.h"
#include "bonfire/base/nearest.h"
#include "bonfire/models/alexnet.h"
#include "bonfire/models/bert.h"
#include "bonfire/models/gpt2.h"
#include "bonfire/models/lstm_classifier.h"
#include "bonfire/models/mnist.h"
#include "bonfire/models/resnet.h"
#include "bonfire/models/two_headed.h"
#include "bonfire/models/vgg.h"

namespace bonfire::models {

namespace {

template <class T>
void take(const std::optional<T>& given, T& option) {
  if (given) option = *given;
}

// The model's own options with what was given put in, where the model has such an option.
template <class Options>
Options filled(const ModelOptions& given) {
  Options options;
  if constexpr (requires { options.classes; }) take(given.classes, options.classes);
  if constexpr (requires { options.in_channels; }) take(given.in_channels, options.in_channels);
  if constexpr (requires { options.inputs; }) options.inputs *= given.in_channels.value_or(1);
  if constexpr (requires { options.vocabulary; }) take(given.vocabulary, options.vocabulary);
  if constexpr (requires { options.dropout; }) take(given.dropout, options.dropout);
  if constexpr (requires { options.attention_dropout; }) take(given.dropout, options.attention_dropout);
  if constexpr (std::is_same_v<Options, GPT2Options>) {
    take(given.layers, options.layers);
    take(given.heads, options.heads);
    take(given.width, options.width);
    take(given.context, options.context);
  }
  return options;
}

template <class M>
Model erased(const M& model) {
  if constexpr (std::is_same_v<M, TwoHeaded>) {
    return Model(model, [model](const Tensor& input) -> std::vector<Tensor> {
      TwoHeadedResult result = model(input);
      return {result.cls, result.box};
    });
  } else {
    return Model(model);
  }
}

struct Entry {
  const char* name;
  Model (*make)(const ModelOptions&);
  const char* task = "image_classification";
};

template <class Options, auto Function>
Model make_with(const ModelOptions& given) {
  return erased(Function(filled<Options>(given)));
}

constexpr Entry kModels[] = {
    {"mnist_cnn", make_with<MnistOptions, mnist_cnn>},
    {"lenet", make_with<MnistOptions, lenet>},
    {"mlp", make_with<MlpOptions, mlp>},
    {"alexnet", make_with<AlexNetOptions, alexnet>},
    {"vgg11", make_with<VggOptions, vgg11>},
    {"vgg13", make_with<VggOptions, vgg13>},
    {"vgg16", make_with<VggOptions, vgg16>},
    {"vgg19", make_with<VggOptions, vgg19>},
    {"vgg11_bn", make_with<VggOptions, vgg11_bn>},
    {"vgg13_bn", make_with<VggOptions, vgg13_bn>},
    {"vgg16_bn", make_with<VggOptions, vgg16_bn>},
    {"vgg19_bn", make_with<VggOptions, vgg19_bn>},
    {"resnet18", make_with<ResNetOptions, resnet18>},
    {"resnet34", make_with<ResNetOptions, resnet34>},
    {"resnet50", make_with<ResNetOptions, resnet50>},
    {"resnet101", make_with<ResNetOptions, resnet101>},
    {"resnet18_small", make_with<ResNetOptions, resnet18_small>},
    {"two_headed", make_with<TwoHeadedOptions, two_headed>, "boxes"},
    {"lstm_classifier", make_with<LstmClassifierOptions, lstm_classifier>, "sequence_classification"},
    {"bert_mini", make_with<BertOptions, bert_mini>, "masked_words"},
    {"bert_base", make_with<BertOptions, bert_base>, "masked_words"},
    {"gpt2", make_with<GPT2Options, gpt2>, "next_token"},
};

const Entry& entry_of(std::string_view name) {
  for (const Entry& entry : kModels)
    if (name == entry.name) return entry;
  throw_error<ConfigError>("[models] there is no model called '{}'; did you mean '{}'?", name,
                           base::nearest(name, names()));
}

}  // namespace

Model::Model(nn::Module module, Function function) : Callable(std::move(module)), function_(std::move(function)) {}

std::vector<Tensor> Model::outputs(const Tensor& input) const { return function_(input); }

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const Entry& entry : kModels) result.emplace_back(entry.name);
  return result;
}

Model make(std::string_view name, const ModelOptions& options) { return entry_of(name).make(options); }
std::string_view task_of(std::string_view name) { return entry_of(name).task; }

}  // namespace bonfire::models
