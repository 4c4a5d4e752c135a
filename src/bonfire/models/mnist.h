#pragma once
// Small networks for images of 28 × 28.

#include <vector>

#include "bonfire/nn/convolution.h"
#include "bonfire/nn/linear.h"

namespace bonfire::models {

struct MnistOptions {
  int64_t classes = 10;
  int64_t in_channels = 1;
};

// Two convolutions of 5 × 5 with ReLU and max-pool, then one linear layer.
class MnistCnn : public nn::Callable<MnistCnn> {
 public:
  explicit MnistCnn(const MnistOptions& options);
  Tensor forward(const Tensor& x) const;  // [N, C, 28, 28] → [N, classes]

 private:
  nn::Conv2d conv1_, conv2_;
  nn::Linear fc_;
};

// LeNet-5 with ReLU and average pooling.
class LeNet : public nn::Callable<LeNet> {
 public:
  explicit LeNet(const MnistOptions& options);
  Tensor forward(const Tensor& x) const;  // [N, C, 28, 28] → [N, classes]

 private:
  nn::Conv2d conv1_, conv2_;
  nn::Linear fc1_, fc2_, fc3_;
};

struct MlpOptions {
  int64_t inputs = 28 * 28;
  std::vector<int64_t> hidden = {256, 128};
  int64_t classes = 10;
};

// Linear layers fc1, fc2, … with ReLU between.
class Mlp : public nn::Callable<Mlp> {
 public:
  explicit Mlp(const MlpOptions& options);
  Tensor forward(const Tensor& x) const;  // [N, …] → [N, classes]

 private:
  std::vector<nn::Linear> layers_;
};

inline MnistCnn mnist_cnn(const MnistOptions& options = {}) { return MnistCnn(options); }
inline LeNet lenet(const MnistOptions& options = {}) { return LeNet(options); }
inline Mlp mlp(const MlpOptions& options = {}) { return Mlp(options); }

}  // namespace bonfire::models
