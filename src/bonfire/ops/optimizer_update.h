#pragma once
// The ops behind optimizers and gradient clipping: one node for any number of tensors, so that a backend can update all
// of them in one sweep. Users call optim/.
//
// Ops (AmpRule::follow; no gradient). S is f64 for f64 parameters, otherwise f32; n parameters, k = state_count(rule).
//   optimizer_update(lr, weight_decay, first, second, eps (f64, rank 0), counts i64 [N ≥ n], n parameters, n gradients
//   like them, n states 0 of type S, … n states k − 1) → counts, n parameters, n states 0, … n states k − 1
//     attributes: rule (an OptimizerRule), nesterov (0 or 1; of momentum), parameters (n), places (n different ones in
//     the counts)
//     The formulas are in ops/optimizer_functions.h. Each parameter has a count of the updates done before this one, at
//     its place; these are one higher in the result.
//   clip_gradients(max_norm (f64, rank 0), gradients) → norm f32 rank 0 (f64 when all are), gradients
//     norm = √(Σ over all of g²); every gradient is multiplied by min(1, max_norm / (norm + 1e-6)).

#include <span>
#include <vector>

#include "bonfire/graph/op.h"
#include "bonfire/ops/optimizer_functions.h"

namespace bonfire {

struct OptimizerUpdate {
  OptimizerRule rule = OptimizerRule::sgd;
  bool nesterov = false;
  Scalar lr, weight_decay, first, second, eps;
};

// The counts of updates of many parameters, and where among them are those that are updated now.
struct UpdateCounts {
  Tensor counts;
  std::span<const int64_t> places;
};

// The outputs of the op.
Tensors optimizer_update(const OptimizerUpdate& update, const UpdateCounts& counts, std::span<const Tensor> parameters,
                         std::span<const Tensor> gradients, std::span<const Tensor> states);

// The norm, then the clipped gradients. All must be on one device; there is at least one.
Tensors clip_gradients(std::span<const Tensor> gradients, const Scalar& max_norm);

}  // namespace bonfire
