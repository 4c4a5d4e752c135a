#include "bonfire/models/mnist.h"

#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/pooling.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::models {

MnistCnn::MnistCnn(const MnistOptions& options)
    : Callable("MnistCnn"),
      conv1_(register_module("conv1", nn::Conv2d({.in = options.in_channels, .out = 20, .kernel = {5}}))),
      conv2_(register_module("conv2", nn::Conv2d({.in = 20, .out = 20, .kernel = {5}}))),
      fc_(register_module("fc", nn::Linear({.in = 320, .out = options.classes}))) {
  set_splits({{"conv1.weight", 0}, {"conv1.bias", 0}, {"conv2.weight", 1}});
}

Tensor MnistCnn::forward(const Tensor& x) const {
  Tensor y = max_pool2d(relu(conv1_(x)), {.kernel = {2}});  // [N, 20, 12, 12]
  y = max_pool2d(relu(conv2_(y)), {.kernel = {2}});         // [N, 20, 4, 4]
  return fc_(flatten(y, 1));
}

LeNet::LeNet(const MnistOptions& options)
    : Callable("LeNet"),
      conv1_(
          register_module("conv1", nn::Conv2d({.in = options.in_channels, .out = 6, .kernel = {5}, .padding = {2}}))),
      conv2_(register_module("conv2", nn::Conv2d({.in = 6, .out = 16, .kernel = {5}}))),
      fc1_(register_module("fc1", nn::Linear({.in = 400, .out = 120}))),
      fc2_(register_module("fc2", nn::Linear({.in = 120, .out = 84}))),
      fc3_(register_module("fc3", nn::Linear({.in = 84, .out = options.classes}))) {
  set_splits({{"conv1.weight", 0},
              {"conv1.bias", 0},
              {"conv2.weight", 1},
              {"fc1.weight", 0},
              {"fc1.bias", 0},
              {"fc2.weight", 1}});
}

Tensor LeNet::forward(const Tensor& x) const {
  Tensor y = avg_pool2d(relu(conv1_(x)), {.kernel = {2}});  // [N, 6, 14, 14]
  y = avg_pool2d(relu(conv2_(y)), {.kernel = {2}});         // [N, 16, 5, 5]
  y = relu(fc1_(flatten(y, 1)));
  return fc3_(relu(fc2_(y)));
}

Mlp::Mlp(const MlpOptions& options) : Callable("Mlp") {
  std::vector<int64_t> sizes = options.hidden;
  sizes.push_back(options.classes);
  int64_t in = options.inputs;
  for (int64_t out : sizes) {
    std::string name = "fc" + std::to_string(layers_.size() + 1);
    layers_.push_back(register_module(name, nn::Linear({.in = in, .out = out})));
    in = out;
  }
  std::vector<nn::Split> splits;  // columns of one layer, rows of the next
  for (size_t i = 0; i + 1 < layers_.size(); i += 2) {
    const std::string first = layers_[i].name(), second = layers_[i + 1].name();
    splits.insert(splits.end(), {{first + ".weight", 0}, {first + ".bias", 0}, {second + ".weight", 1}});
  }
  set_splits(std::move(splits));
}

Tensor Mlp::forward(const Tensor& x) const {
  Tensor y = layers_[0](flatten(x, 1));
  for (size_t i = 1; i < layers_.size(); ++i) y = layers_[i](relu(y));
  return y;
}

}  // namespace bonfire::models
