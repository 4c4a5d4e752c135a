#pragma once
// The ops of optimizers and gradient clipping: one node for any number of tensors, so that a backend can update all of
// them in one sweep. Users call optim/.
//
// What needs norms is two ops: one gives sums of squares, as values of the graph, and one applies them. So whoever
// holds slices of the tensors sums the squares of all slices in between. Where nothing comes between them the pass
// fuse_norms makes them one op again, which is one kernel.
//
// Ops (AmpRule::follow; no gradient). S is f64 for f64 parameters, otherwise f32; n parameters, k = state_count(rule).
//   optimizer_update(lr, weight_decay, first, second, eps (f64, rank 0), counts i64 [N ≥ n], n parameters, n gradients
//   like them, n states 0 of type S, … n states k − 1) → counts, n parameters, n states 0, … n states k − 1
//     attributes: rule (an OptimizerRule), nesterov (0 or 1; of momentum), parameters (n), places (n different ones in
//     the counts)
//     The formulas are in ops/optimizer_functions.h. Each parameter has a count of the updates done before this one, at
//     its place; these are one higher in the result.
//   update_squares(the same) → f64 [2, n]: Σ w² of each parameter, Σ of the squares of what its norm is compared with:
//     the gradient (LARS) or the direction (LAMB). For rules with a trust ratio; the attributes are the same.
//   optimizer_update_by_squares(the same, squares f64 [2, n]) → what optimizer_update gives, with these squares.
//   gradient_squares(gradients) → f64 rank 0: Σ over all of g²
//   clip_gradients_by_squares(max_norm (f64, rank 0), squares f64 rank 0, gradients) → norm f32 rank 0 (f64 when all
//   are), gradients
//     norm = √squares; every gradient is multiplied by min(1, max_norm / (norm + 1e-6)).
//   clip_gradients(max_norm, gradients) → the same, with their own squares

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

// What the update of some parameters reads, for the functions below.
struct UpdateOperands {
  std::vector<Tensor> tensors = {};  // the inputs of optimizer_update
  Attributes attributes;
};
UpdateOperands update_operands(const OptimizerUpdate& update, const UpdateCounts& counts,
                               std::span<const Tensor> parameters, std::span<const Tensor> gradients,
                               std::span<const Tensor> states);

// Of a rule with a trust ratio: what optimizer_update wants, of these tensors or slices alone.
Tensor update_squares(const UpdateOperands& operands);

// The outputs of the op. `squares` are those of the whole parameters, defined where the rule has a trust ratio.
Tensors optimizer_update(const UpdateOperands& operands, const Tensor& squares = {});

// Of all these gradients or slices together. All must be on one device; there is at least one.
Tensor gradient_squares(std::span<const Tensor> gradients);

// The norm, then the clipped gradients. `squares` are those of all gradients that the norm is of.
Tensors clip_gradients(std::span<const Tensor> gradients, const Tensor& squares, const Scalar& max_norm);

}  // namespace bonfire
