#include "bonfire/nn/attention.h"

#include <cmath>
#include <limits>

#include "bonfire/base/error.h"
#include "bonfire/ops/attention.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/ops/softmax.h"

namespace bonfire::nn {

namespace {

// [N, T, E] → [N, heads, T, E / heads]
Tensor split_heads(const Tensor& x, int64_t heads) {
  if (x.rank() != 3 || heads < 1 || x.size(2) % heads != 0)
    throw_error<ShapeError>("[multihead_attention] {} heads cannot share {}; expected [N, T, E], E a multiple of them",
                            heads, to_string(x.shape()));
  return permute(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), {0, 2, 1, 3});
}

Tensor masked(const Tensor& scores, const AttentionMasks& masks) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  Tensor result = scores;  // [N, heads, T, S]
  if (masks.mask.defined())
    result = masks.mask.dtype() == DType::boolean ? where(masks.mask, result, kNever) : result + masks.mask;
  if (masks.causal) {
    Tensor query = arange(0, scores.size(2), {.device = scores.device()});
    Tensor key = arange(0, scores.size(3), {.device = scores.device()});
    result = where(less_equal(unsqueeze(key, 0), unsqueeze(query, 1)), result, kNever);
  }
  return result;
}

// The whole matrix of weights, as dropout needs it.
Tensor attention_with_dropout(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMasks& masks,
                              double p) {
  double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  Tensor scores = masked(matmul(q, k, {.transpose_b = true}) * scale, masks);
  return matmul(dropout(softmax(scores, -1), p), v);
}

}  // namespace

Tensor multihead_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                           const AttentionMasks& masks, double dropout) {
  Tensor query = split_heads(q, heads), key = split_heads(k, heads), value = split_heads(v, heads);
  Tensor mixed = dropout > 0
                     ? attention_with_dropout(query, key, value, masks, dropout)
                     : scaled_dot_product_attention(query, key, value, {.mask = masks.mask, .causal = masks.causal});
  return flatten(permute(mixed, {0, 2, 1, 3}), 2);
}

MultiheadAttention::MultiheadAttention(const Options& options)
    : Callable("MultiheadAttention"),
      options_(options),
      in_proj_weight_(Variable({{3 * options.size, options.size}, DType::f32, {}})),
      out_proj_({.in = options.size, .out = options.size, .bias = options.bias, .bias_init = init::zeros()}) {
  init::apply({}, init::xavier_uniform(), in_proj_weight_);
  register_parameter("in_proj_weight", in_proj_weight_);
  if (options.bias)
    in_proj_bias_ = register_parameter("in_proj_bias", Parameter(Variable({{3 * options.size}, DType::f32, {}})));
  out_proj_ = register_module("out_proj", out_proj_);
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks) const {
  std::vector<Tensor> weights = split(in_proj_weight_, options_.size, 0);
  std::vector<Tensor> biases(3);
  if (options_.bias) biases = split(in_proj_bias_, options_.size, 0);
  Tensor mixed = multihead_attention(linear(query, weights[0], biases[0]), linear(key, weights[1], biases[1]),
                                     linear(value, weights[2], biases[2]), options_.heads, masks,
                                     training() ? options_.dropout : 0);
  return out_proj_(mixed);
}

}  // namespace bonfire::nn
