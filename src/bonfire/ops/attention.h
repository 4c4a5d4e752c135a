#pragma once
// Scaled dot-product attention without ever holding the whole matrix of scores: y = softmax(scale q kᵀ + mask) v.
//
// Ops (AmpRule::low, but log_sum and the mask keep their type). S is f64 for f64, otherwise f32.
//   attention(q [B, H, T, D], k [B, H, S, D], v [B, H, S, E][, mask][, key i64 [4]]) → y [B, H, T, E], log_sum S
//     [B, H, T] (log Σ exp of a query's scores; −∞ where it may look at nothing). mask: any floating type, broadcast to
//     [B, H, T, S]. key: of the dropout of the weights, whose mask is that of the op `dropout` over [B, H, T, S].
//   attention_gradient(dy, y, log_sum, q, k, v[, mask][, key]) → dq, dk, dv
//     attributes of both: causal, has_mask (0 or 1), scale, dropout (numbers; 0 for no dropout and no key), number (of
//     the op within the step); those of a slice of [B, H, T, S] (ops/random_slice.h), for dropout

#include "bonfire/graph/tensor.h"
#include "bonfire/ops/random_slice.h"

namespace bonfire {

struct AttentionOptions {
  // Broadcast to [B, H, T, S]. A float is added to the scores; bool says who may be looked at (true: yes). No gradient
  // flows into it.
  Tensor mask = {};
  bool causal = false;     // query t sees keys 0 … t only
  double scale = 0;        // 0: 1 / √D
  double dropout = 0;      // drops weights of the softmax; 0 outside training
  RandomSlice slice = {};  // which of all weights [B, H, T, S] these are, for dropout: some of the heads
};

// q [B, H, T, D], k [B, H, S, D], v [B, H, S, E] → [B, H, T, E]. A query that may look at nothing gives zeros.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options = {});

}  // namespace bonfire
