#include "bonfire/models/alexnet.h"

#include "bonfire/nn/activation.h"
#include "bonfire/nn/convolution.h"
#include "bonfire/nn/linear.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::models {

namespace {

nn::Sequential make_features(int64_t in_channels) {
  const nn::MaxPool2d pool({.kernel = {3}, .stride = {2}});
  return nn::Sequential({
      nn::Conv2d({.in = in_channels, .out = 64, .kernel = {11}, .stride = {4}, .padding = {2}}),
      nn::ReLU({.inplace = true}),
      pool,
      nn::Conv2d({.in = 64, .out = 192, .kernel = {5}, .padding = {2}}),
      nn::ReLU({.inplace = true}),
      pool,
      nn::Conv2d({.in = 192, .out = 384, .kernel = {3}, .padding = {1}}),
      nn::ReLU({.inplace = true}),
      nn::Conv2d({.in = 384, .out = 256, .kernel = {3}, .padding = {1}}),
      nn::ReLU({.inplace = true}),
      nn::Conv2d({.in = 256, .out = 256, .kernel = {3}, .padding = {1}}),
      nn::ReLU({.inplace = true}),
      pool,
  });
}

nn::Sequential make_classifier(const AlexNetOptions& options) {
  return nn::Sequential({
      nn::Dropout(options.dropout),
      nn::Linear({.in = 256 * 6 * 6, .out = 4096}),
      nn::ReLU({.inplace = true}),
      nn::Dropout(options.dropout),
      nn::Linear({.in = 4096, .out = 4096}),
      nn::ReLU({.inplace = true}),
      nn::Linear({.in = 4096, .out = options.classes}),
  });
}

}  // namespace

AlexNet::AlexNet(const AlexNetOptions& options)
    : Callable("AlexNet"),
      features_(register_module("features", make_features(options.in_channels))),
      avgpool_(register_module("avgpool", nn::AdaptiveAvgPool2d({6, 6}))),
      classifier_(register_module("classifier", make_classifier(options))) {
  set_splits({{"features.0.*", 0},
              {"features.3.weight", 1},
              {"features.6.*", 0},
              {"features.8.weight", 1},
              {"features.10.*", 0},
              {"classifier.1.weight", 1},
              {"classifier.4.*", 0},
              {"classifier.6.weight", 1}});
}

Tensor AlexNet::forward(const Tensor& x) const { return classifier_(flatten(avgpool_(features_(x)), 1)); }

}  // namespace bonfire::models
