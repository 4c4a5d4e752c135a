#pragma once
// Batch normalisation over axis 1 of x [N, C], [N, C, L] or [N, C, H, W].
//
// It is traced as statistics → normalise, and its gradient as sums → apply, so that a pass can put an all-reduce
// between. Below, T is x's floating type and S the type of statistics: f64 for f64, otherwise f32. weight and bias are
// S or T. x̂ = (x − mean) / √(variance + eps). All are AmpRule::follow: x may be bf16 beside f32 statistics and
// parameters, and the result's type is T.
//   batch_norm_statistics(x) → mean S [C], variance S [C] (biased). Not differentiated itself: see `training`.
//   batch_norm_normalize(x, mean, variance, weight, bias) → y = x̂ weight + bias
//     attributes: eps (number), training (1: mean and variance are x's statistics and its gradient goes through them,
//     as sums → apply, 0: they are constants).
//   batch_norm_gradient_sums(dy, x, mean, variance) → sum_dy S [C] (= dbias), sum_dy_xhat S [C] (= dweight)
//     attribute: eps
//   batch_norm_gradient_apply(dy, x, mean, variance, weight, sum_dy, sum_dy_xhat) → dx
//     dx = weight / √(variance + eps) (dy − sum_dy / count − x̂ sum_dy_xhat / count)
//     attributes: eps, count (elements that each sum went over; -1: as many as x has per channel)
//   batch_norm_update_running(running_mean, running_variance, mean, variance) → both running statistics, updated
//     running ← (1 − momentum) running + momentum statistic, the variance unbiased by count / (count − 1)
//     attributes: momentum (number), count (elements in the statistics; with 0 nothing changes)
//
// What fusion makes (no gradient). Attribute activation: -1, or the ElementwiseFunction relu, gelu, gelu_tanh, tanh,
// sigmoid or silu; attribute has_residual: 0 or 1; residual and y have x's shape and type.
//   batch_norm_act(x, mean, variance, weight, bias[, residual]) → y = activation(x̂ weight + bias + residual)
//     attributes: eps, activation, has_residual
//   batch_norm_act_gradient_sums(dy, x, mean, variance, weight, bias[, y]) → sum_dz, sum_dz_xhat
//   batch_norm_act_gradient_apply(dy, x, mean, variance, weight, bias, sum_dz, sum_dz_xhat[, y]) → dx[, dresidual]
//     attributes: eps, activation, has_residual; apply also count. dz is the gradient before the activation. Without a
//     residual it is rebuilt from x, so that y need not be kept; with one (output dresidual = dz) it is taken from y,
//     for which the activation must be -1, relu, tanh or sigmoid. has_residual then says that y is given.

#include "bonfire/graph/tensor.h"
#include "bonfire/graph/variable.h"

namespace bonfire {

struct BatchNormOptions {
  bool training = true;
  double momentum = 0.1;  // share of the new statistic in the running one
  double eps = 1e-5;
  // The statistics will be those of all ranks (strategy.sync_batch_norm): in training, one value per channel may be
  // enough here.
  bool over_ranks = false;
};

// In training mode x is normalised by its own statistics and the running ones are updated; otherwise the running ones
// are used. weight and bias [C] may be undefined (1 and 0); so may both running variables in training mode. ShapeError
// where training has one value per channel, whose variance says nothing.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Variable& running_mean,
                  const Variable& running_variance, const BatchNormOptions& options = {});

}  // namespace bonfire
