#include "bonfire/models/resnet.h"

#include <optional>

#include "bonfire/nn/activation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::models {

namespace {

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return nn::Conv2d({.in = in,
                     .out = out,
                     .kernel = {kernel},
                     .stride = {stride},
                     .padding = {padding},
                     .bias = false,
                     .weight_init = nn::init::kaiming_normal_fan_out()});
}

// What a block adds its result to: x itself, or x brought to the result's shape by a convolution of 1 × 1.
std::optional<nn::Sequential> make_downsample(int64_t in, int64_t out, int64_t stride) {
  if (in == out && stride == 1) return std::nullopt;
  return nn::Sequential({conv(in, out, 1, stride, 0), nn::BatchNorm2d({.channels = out})});
}

class BasicBlock : public nn::Callable<BasicBlock> {
 public:
  static constexpr int64_t kExpansion = 1;

  BasicBlock(int64_t in, int64_t width, int64_t stride)
      : Callable("BasicBlock"),
        conv1_(register_module("conv1", conv(in, width, 3, stride, 1))),
        bn1_(register_module("bn1", nn::BatchNorm2d({.channels = width}))),
        relu_(register_module("relu", nn::ReLU({.inplace = true}))),
        conv2_(register_module("conv2", conv(width, width, 3, 1, 1))),
        bn2_(register_module("bn2", nn::BatchNorm2d({.channels = width}))),
        downsample_(make_downsample(in, width, stride)) {
    if (downsample_) downsample_ = register_module("downsample", *downsample_);
  }

  Tensor forward(const Tensor& x) const {
    Tensor y = bn2_(conv2_(relu_(bn1_(conv1_(x)))));
    return relu_(y + (downsample_ ? (*downsample_)(x) : x));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::ReLU relu_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  std::optional<nn::Sequential> downsample_;
};

class Bottleneck : public nn::Callable<Bottleneck> {
 public:
  static constexpr int64_t kExpansion = 4;

  Bottleneck(int64_t in, int64_t width, int64_t stride)
      : Callable("Bottleneck"),
        conv1_(register_module("conv1", conv(in, width, 1, 1, 0))),
        bn1_(register_module("bn1", nn::BatchNorm2d({.channels = width}))),
        conv2_(register_module("conv2", conv(width, width, 3, stride, 1))),
        bn2_(register_module("bn2", nn::BatchNorm2d({.channels = width}))),
        conv3_(register_module("conv3", conv(width, width * kExpansion, 1, 1, 0))),
        bn3_(register_module("bn3", nn::BatchNorm2d({.channels = width * kExpansion}))),
        relu_(register_module("relu", nn::ReLU({.inplace = true}))),
        downsample_(make_downsample(in, width * kExpansion, stride)) {
    if (downsample_) downsample_ = register_module("downsample", *downsample_);
  }

  Tensor forward(const Tensor& x) const {
    Tensor y = relu_(bn1_(conv1_(x)));
    y = relu_(bn2_(conv2_(y)));
    y = bn3_(conv3_(y));
    return relu_(y + (downsample_ ? (*downsample_)(x) : x));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
  nn::ReLU relu_;
  std::optional<nn::Sequential> downsample_;
};

// The four layers; the channels double from one to the next while height and width halve.
template <class Block>
std::vector<nn::Sequential> make_layers(const std::vector<int>& blocks) {
  std::vector<nn::Sequential> layers;
  int64_t in = 64, width = 64;
  for (int count : blocks) {
    nn::Sequential layer;
    for (int i = 0; i < count; ++i) {
      int64_t stride = i == 0 && !layers.empty() ? 2 : 1;
      layer.push_back(Block(in, width, stride));
      in = width * Block::kExpansion;
    }
    layers.push_back(layer);
    width *= 2;
  }
  return layers;
}

nn::AnyModule make_pool(bool small_images) {
  if (small_images) return nn::Identity();
  return nn::MaxPool2d({.kernel = {3}, .stride = {2}, .padding = {1}});
}

// Of each block the channels between its last two convolutions: all that one makes and the next reads.
std::vector<nn::Split> make_splits(bool bottleneck) {
  const std::string conv = bottleneck ? "layer*.conv2" : "layer*.conv1",
                    norm = bottleneck ? "layer*.bn2" : "layer*.bn1",
                    next = bottleneck ? "layer*.conv3" : "layer*.conv2";
  return {{conv + ".weight", 0},       {norm + ".weight", 0},      {norm + ".bias", 0},
          {norm + ".running_mean", 0}, {norm + ".running_var", 0}, {next + ".weight", 1}};
}

int64_t features_of(const ResNetShape& shape) {
  return 512 * (shape.bottleneck ? Bottleneck::kExpansion : BasicBlock::kExpansion);
}

}  // namespace

ResNet::ResNet(const ResNetShape& shape, const ResNetOptions& options)
    : Callable("ResNet"),
      conv1_(register_module("conv1", shape.small_images ? conv(options.in_channels, 64, 3, 1, 1)
                                                         : conv(options.in_channels, 64, 7, 2, 3))),
      bn1_(register_module("bn1", nn::BatchNorm2d({.channels = 64}))),
      relu_(register_module<nn::AnyModule>("relu", nn::ReLU({.inplace = true}))),
      maxpool_(register_module("maxpool", make_pool(shape.small_images))),
      layers_(shape.bottleneck ? make_layers<Bottleneck>(shape.blocks) : make_layers<BasicBlock>(shape.blocks)),
      avgpool_({1, 1}),
      fc_({.in = features_of(shape), .out = options.classes}) {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i] = register_module("layer" + std::to_string(i + 1), layers_[i]);
  avgpool_ = register_module("avgpool", avgpool_);
  fc_ = register_module("fc", fc_);
  set_splits(make_splits(shape.bottleneck));
}

Tensor ResNet::forward(const Tensor& x) const {
  Tensor y = maxpool_(relu_(bn1_(conv1_(x))));
  for (const nn::Sequential& layer : layers_) y = layer(y);
  return fc_(flatten(avgpool_(y), 1));
}

}  // namespace bonfire::models
