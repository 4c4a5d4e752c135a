#pragma once
// Reverse-mode differentiation over recorded histories. Tensor::backward() is implemented here.

#include <span>
#include <vector>

#include "bonfire/graph/tensor.h"
#include "bonfire/graph/trace.h"

namespace bonfire {

struct GradOptions {
  Tensor cotangent = {};  // gradient of `output`; ones when undefined (then it must have one element)
  bool retain_graph = false;
  bool create_graph = false;  // implies retain_graph
};

// Gradients of `output` with respect to `inputs` (leaves or intermediate values), without touching any variable's
// gradient. Undefined where output does not depend on the input.
std::vector<Tensor> grad(const Tensor& output, std::span<const Tensor> inputs, const GradOptions& options = {});

namespace autodiff {

// Nodes of `trace` through whose history a backward pass from `live` may still go.
std::vector<Node*> reachable_history(const Trace& trace, std::span<const Value> live);

// What a later backward pass through the histories of `live` will read of the values that `trace` is about to compute,
// and of the variable versions it reads. A commit keeps those and nothing else. Found by running the gradient rules on
// feeds, so no op has to declare what it saves.
std::vector<Value> values_needed_later(const Trace& trace, std::span<const Value> live);

}  // namespace autodiff
}  // namespace bonfire
