#pragma once
// VariableShares: variables that the ranks along the data axis share out. They have the same model, and of a
// parameter's optimizer states, of its gradient, perhaps of itself, each keeps a flat slice (graph/slice.h) and no
// more. Whoever shares them out (parallel/strategies/sharding.h) is in the step context; without one a flat slice is a
// slice like any other.

#include "bonfire/graph/tensor.h"
#include "bonfire/graph/variable.h"

namespace bonfire {

class VariableShares {
 public:
  virtual ~VariableShares() = default;
  virtual bool has(const Variable& parameter) const = 0;  // is shared out

  // All that follows is traced; where values of other ranks are needed these trace it, too.
  // The gradient of this rank's own loss, as a backward pass has found it. Whether it is taken: reduced and kept later.
  virtual bool take(const Variable& parameter, const Tensor& gradient) = 0;
  virtual Tensor whole(const Variable& variable) = 0;  // of which a flat slice is here
  virtual Tensor part(const Tensor& whole, const Slice& slice) = 0;
  // What is here of a parameter, to be updated, and its update.
  virtual Tensor part(const Variable& parameter) = 0;
  virtual void assign(const Variable& parameter, const Tensor& part) = 0;
  virtual Tensor sum(const Tensor& of_parts) = 0;  // over the ranks
};

}  // namespace bonfire
