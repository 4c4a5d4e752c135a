#include "bonfire/nn/attention.h"

#include "bonfire/base/error.h"
#include "bonfire/nn/sizes.h"
#include "bonfire/ops/attention.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::nn {

namespace {

constexpr int64_t kPacked = 3;  // query, key and value

// [N, T, E] → [N, heads, T, E / heads]
Tensor split_heads(const Tensor& x, int64_t heads) {
  if (x.rank() != 3 || heads < 1 || x.size(2) % heads != 0)
    throw_error<ShapeError>("[multihead_attention] {} heads cannot share {}; expected [N, T, E], E a multiple of them",
                            heads, to_string(x.shape()));
  return permute(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), {0, 2, 1, 3});
}

Shape projection_shape(const MultiheadAttention::Options& options) {
  require_sizes("MultiheadAttention", {{"size", options.size}, {"heads", options.heads}});
  if (options.size % options.heads != 0)
    throw_error<ConfigError>("[MultiheadAttention] {} heads cannot share a size of {}; expected a multiple of {}",
                             options.heads, options.size, options.heads);
  return {kPacked * options.size, options.size};
}

}  // namespace

Tensor multihead_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                           const AttentionMasks& masks, double dropout) {
  require_defined("multihead_attention", {{"q", q}, {"k", k}, {"v", v}});
  Tensor query = split_heads(q, heads), key = split_heads(k, heads), value = split_heads(v, heads);
  Tensor mixed =
      scaled_dot_product_attention(query, key, value, {.mask = masks.mask, .causal = masks.causal, .dropout = dropout});
  return flatten(permute(mixed, {0, 2, 1, 3}), 2);
}

MultiheadAttention::MultiheadAttention(const Options& options)
    : Callable("MultiheadAttention"),
      options_(options),
      in_proj_weight_(Variable({projection_shape(options), DType::f32, {}})),
      out_proj_({.in = options.size, .out = options.size, .bias = options.bias, .bias_init = init::zeros()},
                "NonDynamicallyQuantizableLinear") {
  init::apply({}, init::xavier_uniform(), in_proj_weight_);
  in_proj_weight_.set_packed(0, kPacked);
  register_parameter("in_proj_weight", in_proj_weight_);
  if (options.bias) {
    in_proj_bias_ = register_parameter("in_proj_bias", Parameter(Variable({{kPacked * options.size}, DType::f32, {}})));
    in_proj_bias_.set_packed(0, kPacked);
  }
  out_proj_ = register_module("out_proj", out_proj_);
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks) const {
  std::vector<Tensor> weights = split(in_proj_weight_, options_.size, 0);
  std::vector<Tensor> biases(kPacked);
  if (options_.bias) biases = split(in_proj_bias_, options_.size, 0);
  Tensor mixed = multihead_attention(linear(query, weights[0], biases[0]), linear(key, weights[1], biases[1]),
                                     linear(value, weights[2], biases[2]), options_.heads, masks,
                                     training() ? options_.dropout : 0);
  return out_proj_(mixed);
}

}  // namespace bonfire::nn
