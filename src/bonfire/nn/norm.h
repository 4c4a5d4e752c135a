#pragma once
// Normalisation layers. In training mode batch norm uses the batch's statistics and follows them in its buffers
// (running_mean, running_var, num_batches_tracked); after eval() it uses the buffers.

#include "bonfire/nn/module.h"

namespace bonfire::nn {

class BatchNorm : public Callable<BatchNorm> {
 public:
  struct Options {
    int64_t channels;
    double eps = 1e-5;
    double momentum = 0.1;  // share of the new statistic in the running one
    bool affine = true;     // has weight and bias
  };

  Tensor forward(const Tensor& x) const;  // [N, channels, …]

  Parameter weight, bias;  // [channels], ones and zeros at first; undefined without affine
  Variable running_mean, running_var;
  Variable num_batches_tracked;  // i64, rank 0

 protected:
  BatchNorm(const std::string& kind, const Options& options);

 private:
  Options options_;
};

class BatchNorm1d : public BatchNorm {  // [N, C] or [N, C, L]
 public:
  explicit BatchNorm1d(const Options& options) : BatchNorm("BatchNorm1d", options) {}
};

class BatchNorm2d : public BatchNorm {  // [N, C, H, W]
 public:
  explicit BatchNorm2d(const Options& options) : BatchNorm("BatchNorm2d", options) {}
};

class LayerNorm : public Callable<LayerNorm> {
 public:
  struct Options {
    Shape shape;  // of the trailing axes that are normalised together
    double eps = 1e-5;
    bool affine = true;  // has weight and bias
  };
  explicit LayerNorm(const Options& options);

  Tensor forward(const Tensor& x) const;

  Parameter weight, bias;  // [shape], ones and zeros at first; undefined without affine

 private:
  Options options_;
};

}  // namespace bonfire::nn
