#pragma once
// Matrix products.
//
// Ops (both AmpRule::low):
//   matmul(a [..., M, K], b [..., K, N]) → [..., M, N]
//     attributes: transpose_a, transpose_b (0 or 1: the last two axes of that operand are swapped). Leading axes
//     broadcast. Both operands have rank ≥ 2 and the same floating type. Differentiable any number of times.
//   matmul_bias_act(a, b[, bias [N] or [1, …, N]]) → activation(matmul(a, b) + bias)
//     attributes: transpose_a, transpose_b, has_bias (0 or 1), activation (-1, or the ElementwiseFunction relu, gelu,
//     gelu_tanh, tanh, sigmoid or silu). bias has a's type, or f32 beside bf16 and f16. Made by fusion only: it has no
//     gradient.

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct MatmulOptions {
  bool transpose_a = false;  // swaps the last two axes of a; of an operand with rank 1 it must be false
  bool transpose_b = false;
};

// As torch.matmul: leading axes broadcast; an operand of rank 1 is a row (a) or a column (b) that the result lacks.
Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions options = {});

// x [..., in], weight [out, in], bias [out] or undefined → x weightᵀ + bias [..., out].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace bonfire
