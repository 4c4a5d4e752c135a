#pragma once
// AlexNet as torchvision has it (one tower), with its parameter names: features.0.weight, …, classifier.6.bias.

#include "bonfire/nn/pooling.h"
#include "bonfire/nn/sequential.h"

namespace bonfire::models {

struct AlexNetOptions {
  int64_t classes = 1000;
  int64_t in_channels = 3;
  double dropout = 0.5;
};

class AlexNet : public nn::Callable<AlexNet> {
 public:
  explicit AlexNet(const AlexNetOptions& options);
  Tensor forward(const Tensor& x) const;  // [N, C, H, W], H and W from 63 up → [N, classes]

 private:
  nn::Sequential features_;
  nn::AdaptiveAvgPool2d avgpool_;
  nn::Sequential classifier_;
};

inline AlexNet alexnet(const AlexNetOptions& options = {}) { return AlexNet(options); }

}  // namespace bonfire::models
