#pragma once
// Batch normalisation over the samples of several ranks. The pass sync_batch_norm puts these ops, and an all-reduce
// (sum) between them, after batch_norm_statistics and batch_norm_gradient_sums (batch_norm.h); nobody traces them.
//
// Ranks may have different numbers of samples, and none. What is summed over them is f64, so that a mean far from zero
// does no harm. S is the type of statistics.
//   batch_norm_moments(mean S [C], variance S [C]) → f64 [2 C + 1]: count mean, count (variance + mean²), count
//     attribute: count (elements of a channel on this rank)
//   batch_norm_joint_statistics(moments of all ranks) → mean, variance, unbiased variance, each S [C]
//     attribute: dtype (S)
//   batch_norm_gradient_moments(sum_dy S [C], sum_dy_xhat S [C]) → f64 [2 C], both
//   batch_norm_joint_sums(gradient moments of all ranks, moments of all ranks) → sum_dy S [C], sum_dy_xhat S [C]: this
//     rank's even share of them, which divided by its count is what all sums divided by all counts are
//     attributes: count, dtype

#include "bonfire/graph/op.h"

namespace bonfire {

const Op& batch_norm_moments_op();
const Op& batch_norm_joint_statistics_op();
const Op& batch_norm_gradient_moments_op();
const Op& batch_norm_joint_sums_op();

}  // namespace bonfire
