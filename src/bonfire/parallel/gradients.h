#pragma once
// The gradients of a model become their mean over the ranks.
//
// Ranks need not use the same parameters in a step: one may have samples that take another way through the model. So
// every backward pass that reaches a model reduces all of its gradients, last parameter first, whatever this rank has
// used, and all ranks make the same collectives. A parameter without a gradient gives zeros. Beside the gradients goes
// one number for each parameter, 1 on ranks that have used it: where it comes back as 0, nobody has, and the optimizer
// leaves the parameter and its state as they are. A rank that has used a parameter itself need not look.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "bonfire/graph/tensor.h"
#include "bonfire/graph/variable.h"

namespace bonfire::fleet {

class ModelGradients {
 public:
  // `names` are the places of the parameters in the channel's names, `uses_name` that of the numbers beside them.
  ModelGradients(std::vector<Variable> parameters, std::vector<int64_t> names, int64_t uses_name);

  // A backward pass has written the gradients of these. Whether one of the model's parameters is among them.
  bool note(const std::set<const VariableState*>& written);
  void reduce(int channel);                       // appends the all-reduces
  const Variable& uses() const { return uses_; }  // [parameters] f32
  // Whether any rank has used the parameter [1]; undefined where this one has, and for parameters of other models.
  Tensor used_anywhere(const Variable& parameter) const;

 private:
  std::vector<Variable> parameters_;
  std::map<const VariableState*, size_t> places_;  // of the parameters
  std::vector<int64_t> names_;
  int64_t uses_name_;
  Variable uses_;
  std::vector<bool> only_others_;  // [parameters]: its gradient is that of other ranks, if they have one
  std::vector<float> used_here_;   // [parameters]
  Tensor used_here_tensor_;
};

}  // namespace bonfire::fleet
