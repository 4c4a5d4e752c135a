#pragma once
// x weightᵀ + bias over the last axis.

#include "bonfire/nn/init.h"
#include "bonfire/nn/module.h"

namespace bonfire::nn {

class Linear : public Callable<Linear> {
 public:
  struct Options {
    int64_t in, out;
    bool bias = true;
    init::Rule weight_init = {};  // empty: as PyTorch, uniform within ±1 / √in; here and below
    init::Rule bias_init = {};
  };
  explicit Linear(const Options& options, const char* kind = "Linear");  // kind: what the tree calls it
  Linear(const Parameter& tied_weight, const Parameter& tied_bias);      // [out, in], [out] or undefined: others' own

  Tensor forward(const Tensor& x) const;  // [..., in] → [..., out]

  Parameter weight;  // [out, in]
  Parameter bias;    // [out], or undefined

 private:
  void add_parameters();
};

}  // namespace bonfire::nn
