#pragma once
// Pooling as modules, to stand in a Sequential. Elsewhere call the op.

#include "bonfire/nn/module.h"
#include "bonfire/ops/pooling.h"

namespace bonfire::nn {

class MaxPool2d : public Callable<MaxPool2d> {
 public:
  explicit MaxPool2d(const MaxPool2dOptions& options);
  Tensor forward(const Tensor& x) const { return max_pool2d(x, options_); }

 private:
  MaxPool2dOptions options_;
};

class AvgPool2d : public Callable<AvgPool2d> {
 public:
  explicit AvgPool2d(const AvgPool2dOptions& options);
  Tensor forward(const Tensor& x) const { return avg_pool2d(x, options_); }

 private:
  AvgPool2dOptions options_;
};

class AdaptiveAvgPool2d : public Callable<AdaptiveAvgPool2d> {
 public:
  explicit AdaptiveAvgPool2d(const Shape& output_size);  // {OH, OW}; one number stands for both
  Tensor forward(const Tensor& x) const { return adaptive_avg_pool2d(x, output_size_); }

 private:
  Shape output_size_;
};

}  // namespace bonfire::nn
