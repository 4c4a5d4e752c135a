#include "bonfire/models/two_headed.h"

#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::models {

namespace {

nn::Conv2d halving_conv(int64_t in, int64_t out) {
  return nn::Conv2d({.in = in, .out = out, .kernel = {3}, .stride = {2}, .padding = {1}});
}

}  // namespace

TwoHeaded::TwoHeaded(const TwoHeadedOptions& options)
    : Callable("TwoHeaded"),
      conv1_(register_module("conv1", halving_conv(options.in_channels, 16))),
      bn1_(register_module("bn1", nn::BatchNorm2d({.channels = 16}))),
      conv2_(register_module("conv2", halving_conv(16, 32))),
      bn2_(register_module("bn2", nn::BatchNorm2d({.channels = 32}))),
      conv3_(register_module("conv3", halving_conv(32, 64))),
      bn3_(register_module("bn3", nn::BatchNorm2d({.channels = 64}))),
      box_(register_module("box", nn::Linear({.in = 64, .out = 4}))),
      cls_(register_module("cls", nn::Linear({.in = 64, .out = options.classes}))) {
  std::vector<nn::Split> splits{{"conv2.weight", 1}, {"cls.weight", 1}, {"box.weight", 1}};
  for (const std::string number : {"1", "3"}) {
    for (const char* name : {".weight", ".bias"}) splits.push_back({"conv" + number + name, 0});
    for (const char* name : {".weight", ".bias", ".running_mean", ".running_var"})
      splits.push_back({"bn" + number + name, 0});
  }
  set_splits(std::move(splits));
}

TwoHeadedResult TwoHeaded::forward(const Tensor& x) const {
  Tensor y = relu(bn1_(conv1_(x)));
  y = relu(bn2_(conv2_(y)));
  y = mean(relu(bn3_(conv3_(y))), {2, 3});  // [N, 64]
  return {cls_(y), box_(y)};
}

}  // namespace bonfire::models
