#pragma once
// Long short-term memory, with PyTorch's weights and gate order (input, forget, cell, output):
//   i, f, g, o = split(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh),  c ← σ(f) c + σ(i) tanh(g),  h ← σ(o) tanh(c).
// A layer is a few nodes however long the sequence is: one product for all input projections, one op for the
// recurrence.
//
// Ops (AmpRule::low; all inputs and outputs of one floating type, but for states that are carried on):
//   lstm_layer(projected [T, N, 4H], h0 [N, H], c0 [N, H], w_hh [4H, H]) → y [T, N, H], h and c at the end
//     [N, H], gates [T, N, 4H] (after their activations), cells [T, N, H]. projected is x W_ihᵀ with both biases.
//     Where c0 is f32 beside a narrower type c at the end is, too: so a sequence in parts, each beginning with the
//     states that the one before it has ended with, has the bits of the whole.
//   lstm_layer_gradient(w_hh, c0, gates, cells[, dy][, dh][, dc]) → dprojected, dh0, dc0
//     attributes: has_dy, has_dh, has_dc (0 or 1). dw_hh is a matmul of dprojected with the h that went in. dh0 and dc0
//     have c0's type; each of dh and dc has that or the others'.

#include <span>

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct LstmWeights {
  Tensor w_ih;        // [4H, I]; I is H for all layers but the first
  Tensor w_hh;        // [4H, H]
  Tensor b_ih, b_hh;  // [4H]; both or neither
};

struct LstmOptions {
  bool batch_first = false;  // x and output are [N, T, …] instead of [T, N, …]
  double dropout = 0;        // on the output of every layer but the last, while training
  bool training = true;
};

struct LstmResult {
  Tensor output;  // [T, N, H]: h of the last layer at every time
  Tensor h, c;    // [layers, N, H] at the last time
};

// x [T, N, I], one LstmWeights a layer, h0 and c0 [layers, N, H] (undefined: zeros).
LstmResult lstm(const Tensor& x, std::span<const LstmWeights> layers, const Tensor& h0 = {}, const Tensor& c0 = {},
                LstmOptions options = {});

}  // namespace bonfire
