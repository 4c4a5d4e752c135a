#pragma once
// Losses, and the counts that accuracies are made of. Under mixed precision they are computed in f32.
//
// Ops (AmpRule::full). S is f64 for f64 logits, otherwise f32; rows is logits' shape without axis 1.
//   cross_entropy(logits [N, C, …], target i64 rows) → loss (logits' type; rows for Reduction::none, otherwise rank 0),
//     log_sum S rows (log Σ exp of the logits, so that the gradient needs no probabilities), count i64 rank 0 (targets
//     that are not ignored)
//   cross_entropy_gradient(dloss, logits, target, log_sum, count) → dlogits
//     attributes of both: label_smoothing (number), ignore_index, reduction (a Reduction)
//   full_precision(x) → x: elementwise; heads the chains of elementwise ops that the other losses are

#include "bonfire/graph/tensor.h"

namespace bonfire {

enum class Reduction : uint8_t { none, mean, sum };

struct CrossEntropyOptions {
  double label_smoothing = 0;   // in [0, 1]: this share of the target is spread evenly over all classes
  int64_t ignore_index = -100;  // targets with this value count for nothing
  Reduction reduction = Reduction::mean;
};

// −log softmax(logits)[target], for logits [N, C] or [N, C, …] and class indices i64 [N] or [N, …]. The mean is over
// the targets that are not ignored (NaN when there are none). A target outside [0, C) is a DataError when it runs.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, CrossEntropyOptions options = {});

struct LossOptions {
  Reduction reduction = Reduction::mean;
};
Tensor mse_loss(const Tensor& input, const Tensor& target, LossOptions options = {});  // (input − target)²
Tensor l1_loss(const Tensor& input, const Tensor& target, LossOptions options = {});   // |input − target|

struct SmoothL1Options {
  double beta = 1.0;  // below it the loss is a parabola: d² / 2 beta; above it |d| − beta / 2
  Reduction reduction = Reduction::mean;
};
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, SmoothL1Options options = {});

// How many of the N rows have their target among the k largest logits: i64, rank 0. logits [N, C], target i64 [N].
Tensor top_k_correct(const Tensor& logits, const Tensor& target, int64_t k = 1);

}  // namespace bonfire
