#pragma once
// Tensor parallel, as a pass. Every rank along the tensor axis of the mesh runs the same step. Variables of which each
// has a part (Variable::keep_slice, cut evenly along one axis) are whole to users, shape rules and gradient rules; this
// pass decides how every value of the step lies, by the rules that stand beside the ops' shape and gradient rules
// (graph/sharding.h), and computes on parts. Gradients are nodes like any other.
//
// Collectives go only where what a node has does not lie as it wants it:
// - split → whole: an all-gather; partial sums → whole: an all-reduce; partial sums → split: a reduce-scatter;
// - whole → split costs nothing, since every rank has its part already.
// Each is done at most once a value. Partial sums that one node alone reads stay such through sums, scalings and views,
// and what is added to them waits: so a product split by rows after one split by columns, with its bias and what its
// gradient is added to, costs one all-reduce forward and one backward. What the program holds comes out whole.

#include <memory>
#include <string>
#include <vector>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

// By the mesh of this thread's step context. Where its tensor axis has one rank nothing changes.
std::unique_ptr<Pass> shard();

// An all-gather that is there because the op that reads it has no rule for parts.
struct Gathered {
  std::string op, path;  // that reads it; of its module
  int64_t bytes = 0;     // that it reads

  friend bool operator==(const Gathered&, const Gathered&) = default;
};
std::vector<Gathered> gathered_in(const Graph& graph);

}  // namespace bonfire::passes
