#pragma once
// The gradients of a model become their mean over the ranks.
//
// Ranks need not use the same parameters in a step: one may have samples that take another way through the model. So
// every backward pass that reaches a model reduces all of its gradients, whatever this rank has used, and all ranks
// make the same collectives. Their order is that in which rank 0's first backward pass has made the gradients: that of
// use, whatever order the modules were registered in, so that the first all-reduces begin early. A parameter without a
// gradient gives zeros. Beside the gradients goes one number for each parameter, 1 on ranks that have used it: where it
// comes back as 0, nobody has, and the optimizer leaves the parameter and its state as they are. A rank that has used a
// parameter itself need not look.

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "bonfire/graph/step_state.h"
#include "bonfire/graph/tensor.h"
#include "bonfire/graph/variable.h"

namespace bonfire::fleet {

class ModelGradients {
 public:
  // `names` are the numbers of the parameters in the job's ValueNames, `uses_name` that of the numbers beside them.
  ModelGradients(std::vector<Variable> parameters, std::vector<int64_t> names, int64_t uses_name);

  // The order in which the gradients are reduced, and should lie in memory: last parameter first, until one is set.
  std::vector<int64_t> order_of(
      std::span<const Variable> written) const;  // after a backward pass wrote these, in order
  void set_order(std::vector<int64_t> order);
  bool has_order() const { return has_order_; }
  std::vector<Variable> in_order() const;  // the parameters that require a gradient

  // A backward pass has written the gradients of these. Whether one of the model's parameters is among them.
  bool note(const std::set<const VariableState*>& written);
  void reduce();                                  // appends the all-reduces
  const Variable& uses() const { return uses_; }  // [parameters] f32
  // Whether any rank has used the parameter [1]; undefined where this one has, and for parameters of other models.
  Tensor used_anywhere(const Variable& parameter) const;

 private:
  std::vector<Variable> parameters_;
  std::map<const VariableState*, size_t> places_;  // of the parameters
  std::vector<int64_t> names_;
  int64_t uses_name_;
  std::vector<int64_t> order_;  // of places
  bool has_order_ = false;
  Variable uses_;
  std::vector<StepState<bool>> only_others_;  // [parameters]: its gradient is that of other ranks, if they have one
  std::vector<float> used_here_;              // [parameters]
  Tensor used_here_tensor_;
};

}  // namespace bonfire::fleet
