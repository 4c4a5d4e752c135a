#pragma once
// Attention with several heads, under PyTorch's parameter names (in_proj_weight, in_proj_bias, out_proj.weight, …), and
// what any such module is made of.

#include "bonfire/nn/linear.h"
#include "bonfire/nn/module.h"

namespace bonfire::nn {

struct AttentionMasks {
  Tensor mask = {};     // broadcast to [N, heads, T, S]: a float is added to the scores, bool says who may be seen
  bool causal = false;  // query t sees keys 0 … t only
};

// softmax(q kᵀ / √(E / heads) + mask) v, head by head. q [N, T, E], k and v [N, S, E] → [N, T, E]. `dropout` drops
// weights of the mixture. The matrix of weights is never held.
Tensor multihead_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                           const AttentionMasks& masks = {}, double dropout = 0);

class MultiheadAttention : public Callable<MultiheadAttention> {
 public:
  struct Options {
    int64_t size, heads;  // elements of a token, which the heads share
    double dropout = 0;
    bool bias = true;
  };
  explicit MultiheadAttention(const Options& options);

  // query [N, T, size], key and value [N, S, size] → [N, T, size]
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {}) const;
  Tensor forward(const Tensor& x) const { return forward(x, x, x); }

 private:
  Options options_;
  Parameter in_proj_weight_, in_proj_bias_;  // [3 size, size], [3 size]: those of query, key and value
  Linear out_proj_;
};

}  // namespace bonfire::nn
