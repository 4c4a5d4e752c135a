#pragma once
// ResNet-18, 34, 50 and 101 with torchvision's parameter names and first values, and the small-image ResNet-18, whose
// first convolution is 3 × 3 with stride 1 and has no max-pool after it.

#include <vector>

#include "bonfire/nn/convolution.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/norm.h"
#include "bonfire/nn/pooling.h"
#include "bonfire/nn/sequential.h"

namespace bonfire::models {

struct ResNetOptions {
  int64_t classes = 1000;
  int64_t in_channels = 3;
};

// What the members of the family differ in.
struct ResNetShape {
  bool bottleneck = false;       // blocks of 1 × 1, 3 × 3, 1 × 1 with four times the channels, instead of two 3 × 3
  std::vector<int> blocks = {};  // in each of the four layers
  bool small_images = false;
};

class ResNet : public nn::Callable<ResNet> {
 public:
  ResNet(const ResNetShape& shape, const ResNetOptions& options);
  Tensor forward(const Tensor& x) const;  // [N, C, H, W] → [N, classes]

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::AnyModule relu_, maxpool_;
  std::vector<nn::Sequential> layers_;
  nn::AdaptiveAvgPool2d avgpool_;
  nn::Linear fc_;
};

inline ResNet resnet18(const ResNetOptions& options = {}) { return ResNet({.blocks = {2, 2, 2, 2}}, options); }
inline ResNet resnet34(const ResNetOptions& options = {}) { return ResNet({.blocks = {3, 4, 6, 3}}, options); }
inline ResNet resnet50(const ResNetOptions& options = {}) {
  return ResNet({.bottleneck = true, .blocks = {3, 4, 6, 3}}, options);
}
inline ResNet resnet101(const ResNetOptions& options = {}) {
  return ResNet({.bottleneck = true, .blocks = {3, 4, 23, 3}}, options);
}
inline ResNet resnet18_small(const ResNetOptions& options = {}) {
  return ResNet({.blocks = {2, 2, 2, 2}, .small_images = true}, options);
}

}  // namespace bonfire::models
