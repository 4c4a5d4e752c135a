#pragma once
// strategy.sharding: ranks along the data axis share out what each of them would otherwise have a copy of
// (docs/sharding.md).
//
//   optimizer    of each parameter's optimizer states a rank has its part (comm/flat_parts.h). Gradients are
//                reduce-scattered, so that a rank gets its part of their mean; it updates its part of the parameter,
//                and parts are gathered. Between updates gradients add up whole.
//   gradients    they add up as parts: every backward pass reduces them.
//   parameters   these are parts, too: a step gathers each just before it is used, and lets go of it.

#include <unordered_map>

#include "bonfire/graph/step_state.h"
#include "bonfire/graph/variable_shares.h"
#include "bonfire/parallel/strategies/kind.h"

namespace bonfire::fleet {

enum class Sharded : uint8_t { off, optimizer, gradients, parameters };
Sharded sharded_by(const std::string& name);  // ConfigError for a name that is none

class DataSharding final : public StrategyPart, public VariableShares {
 public:
  explicit DataSharding(const Applied& to);
  DataSharding(const DataSharding&) = delete;
  DataSharding& operator=(const DataSharding&) = delete;
  ~DataSharding() override;

  Sharded level() const { return level_; }
  const std::vector<Variable>& parameters() const { return parameters_; }
  std::vector<Variable> sums() const;  // where gradients add up whole, as far as there are any

  bool has(const Variable& parameter) const override { return own_.contains(&parameter.state()); }
  bool take(const Variable& parameter, const Tensor& gradient) override;
  Tensor whole(const Variable& variable) override;
  Tensor part(const Tensor& whole, const Slice& slice) override;
  Tensor part(const Variable& parameter) override;
  void assign(const Variable& parameter, const Tensor& part) override;
  Tensor sum(const Tensor& of_parts) override;

  // For whoever reduces gradients after a backward pass (parallel/gradients.h): of those that are whole when it has
  // found them. Whether this rank has one of the parameter that is not reduced yet.
  bool reduces(const Variable& parameter) const { return level_ != Sharded::parameters && has(parameter); }
  bool is_waiting(const Variable& parameter) const;
  void forget_gathered();                                // a backward pass is over: others gather anew
  void add_up();                                         // what waits is reduced with a later pass
  void reduce(const Variable& parameter, int64_t name);  // and added to the gradient; of none zeros

 private:
  struct Own {
    Variable parameter;
    int64_t name = -1;                   // of the job's ValueNames
    Tensor found = {};                   // by the backward pass that is being traced
    Variable sum = {};                   // of earlier ones; undefined until there is one
    StepState<bool> sum_is_clear{true};  // or was cleared with the gradient
    Value gathered = {};                 // what reads the parameter again before a backward pass reads that
  };
  Own& own(const Variable& parameter) { return own_.at(&parameter.state()); }
  bool has_sum(const Own& one) const;

  Sharded level_;
  StepContext& context_;
  std::vector<Variable> parameters_;
  std::unordered_map<const VariableState*, Own> own_;
};

DataSharding* sharding_of_job();  // null: this thread's job does without

}  // namespace bonfire::fleet
