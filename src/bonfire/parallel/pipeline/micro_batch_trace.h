#pragma once
// The step for micro-batches of certain shapes, as it was traced. Beside its inputs what it has read of the host shapes
// it (train or eval mode, which parameters get gradients, hooks), so by all of that it is found again: as compile()
// finds its steps.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/graph/graph.h"
#include "bonfire/graph/step_state.h"
#include "bonfire/graph/tensor.h"
#include "bonfire/parallel/pipeline/forward_stages.h"

namespace bonfire::pipeline {

struct MicroBatchTrace {
  std::vector<TensorSpec> inputs = {}, results = {};
  base::Hash128 surroundings = {};  // pass options, mesh, thread
  StepRecord states = {};           // of the host, that it has read
  std::vector<Value> leaves = {};
  std::vector<int> input_of_leaf = {};  // which input a leaf stands for, or -1

  // Whether tracing such inputs now would come to the same.
  bool fits(std::span<const TensorSpec> other_inputs) const;
};

// Traces the forward function and, where a weight is given, the backward pass of its first result times that. Gradients
// are written as if all were clear: whether a program adds to them is known when it runs. What tracing changes on the
// host is put back. ConfigError where the function returns no loss.
MicroBatchTrace trace_micro_batch(const Forward& forward, std::span<const TensorSpec> inputs, const Scalar* weight,
                                  std::unique_ptr<Graph>& graph);

}  // namespace bonfire::pipeline
