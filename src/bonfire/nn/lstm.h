#pragma once
// Long short-term memory with PyTorch's parameter names: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, …_l1, …

#include "bonfire/nn/module.h"
#include "bonfire/ops/lstm.h"

namespace bonfire::nn {

class LSTM : public Callable<LSTM> {
 public:
  struct Options {
    int64_t input, hidden;  // elements of a step's input and of a state
    int64_t layers = 1;
    bool bias = true;
    bool batch_first = false;  // x and output are [N, T, …] instead of [T, N, …]
    double dropout = 0;        // on the output of every layer but the last, in training mode
  };
  explicit LSTM(const Options& options);

  // x [T, N, input]; h0 and c0 [layers, N, hidden], undefined: zeros.
  LstmResult forward(const Tensor& x, const Tensor& h0 = {}, const Tensor& c0 = {}) const;

 private:
  struct Layer {
    Parameter weight_ih, weight_hh;  // [4 hidden, input or hidden], [4 hidden, hidden]
    Parameter bias_ih, bias_hh;      // [4 hidden], or undefined
  };
  Options options_;
  std::vector<Layer> layers_;
};

}  // namespace bonfire::nn
