#pragma once
// Two-dimensional convolution with its weights.

#include "bonfire/nn/init.h"
#include "bonfire/nn/module.h"
#include "bonfire/ops/convolution.h"

namespace bonfire::nn {

class Conv2d : public Callable<Conv2d> {
 public:
  struct Options {
    int64_t in, out;  // channels
    Shape kernel;     // {h, w}; one number stands for both, here and below
    Shape stride = {1, 1};
    Shape padding = {0, 0};
    Shape dilation = {1, 1};
    int64_t groups = 1;
    bool bias = true;
    init::Rule weight_init = {};  // empty: as PyTorch, uniform within ±1 / √fan_in; here and below
    init::Rule bias_init = {};
  };
  explicit Conv2d(const Options& options);

  Tensor forward(const Tensor& x) const;  // [N, in, H, W] → [N, out, OH, OW]

  Parameter weight;  // [out, in / groups, KH, KW]
  Parameter bias;    // [out], or undefined

 private:
  Conv2dOptions options_;
};

}  // namespace bonfire::nn
