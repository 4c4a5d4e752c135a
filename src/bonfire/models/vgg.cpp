#include "bonfire/models/vgg.h"

#include "bonfire/base/error.h"
#include "bonfire/nn/activation.h"
#include "bonfire/nn/convolution.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/norm.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::models {

namespace {

// How many convolutions each of the five stages has.
std::vector<int> stages_of(int depth) {
  switch (depth) {
    case 11: return {1, 1, 2, 2, 2};
    case 13: return {2, 2, 2, 2, 2};
    case 16: return {2, 2, 3, 3, 3};
    case 19: return {2, 2, 4, 4, 4};
    default: throw_error<ConfigError>("[vgg] there is no VGG-{}; depths are 11, 13, 16 and 19", depth);
  }
}

nn::Sequential make_features(int depth, bool batch_norm, int64_t in_channels) {
  constexpr int64_t kChannels[] = {64, 128, 256, 512, 512};
  nn::Sequential features;
  int64_t in = in_channels;
  std::vector<int> stages = stages_of(depth);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    int64_t out = kChannels[stage];
    for (int i = 0; i < stages[stage]; ++i) {
      features.push_back(nn::Conv2d({.in = in,
                                     .out = out,
                                     .kernel = {3},
                                     .padding = {1},
                                     .weight_init = nn::init::kaiming_normal_fan_out(),
                                     .bias_init = nn::init::zeros()}));
      if (batch_norm) features.push_back(nn::BatchNorm2d({.channels = out}));
      features.push_back(nn::ReLU({.inplace = true}));
      in = out;
    }
    features.push_back(nn::MaxPool2d({.kernel = {2}}));
  }
  return features;
}

nn::Linear classifier_layer(int64_t in, int64_t out) {
  return nn::Linear({.in = in, .out = out, .weight_init = nn::init::normal(0.01), .bias_init = nn::init::zeros()});
}

nn::Sequential make_classifier(const VggOptions& options) {
  return nn::Sequential({classifier_layer(512 * 7 * 7, 4096), nn::ReLU({.inplace = true}), nn::Dropout(options.dropout),
                         classifier_layer(4096, 4096), nn::ReLU({.inplace = true}), nn::Dropout(options.dropout),
                         classifier_layer(4096, options.classes)});
}

// Output channels of one convolution, with what norms them, and input channels of the next; the classifier goes on so.
std::vector<nn::Split> make_splits(int depth, bool batch_norm) {
  std::vector<nn::Split> splits;
  bool columns = true;
  auto add = [&](const std::string& layer, const std::string& norm) {
    splits.push_back({layer + ".weight", columns ? 0 : 1});
    if (columns) splits.push_back({layer + ".bias", 0});
    if (columns && !norm.empty())
      for (const char* name : {".weight", ".bias", ".running_mean", ".running_var"}) splits.push_back({norm + name, 0});
    columns = !columns;
  };
  int place = 0;  // in the features
  for (int convolutions : stages_of(depth)) {
    for (int i = 0; i < convolutions; ++i) {
      add(fmt::format("features.{}", place), batch_norm ? fmt::format("features.{}", place + 1) : "");
      place += batch_norm ? 3 : 2;
    }
    ++place;  // the pooling
  }
  add("classifier.0", "");
  add("classifier.3", "");
  if (!columns) add("classifier.6", "");
  return splits;
}

}  // namespace

Vgg::Vgg(int depth, bool batch_norm, const VggOptions& options)
    : Callable("VGG"),
      features_(register_module("features", make_features(depth, batch_norm, options.in_channels))),
      avgpool_(register_module("avgpool", nn::AdaptiveAvgPool2d({7, 7}))),
      classifier_(register_module("classifier", make_classifier(options))) {
  set_splits(make_splits(depth, batch_norm));
}

Tensor Vgg::forward(const Tensor& x) const { return classifier_(flatten(avgpool_(features_(x)), 1)); }

}  // namespace bonfire::models
