#pragma once
// StepContext: how the steps of a thread are made. One object holds all of it, so that several strategies can take part
// in a step at once and a thread that takes over another's steps can be given the same surroundings. Each thread has
// one; its traces refer to it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "bonfire/graph/hooks.h"
#include "bonfire/graph/mesh.h"
#include "bonfire/graph/phase.h"
#include "bonfire/graph/step_options.h"
#include "bonfire/graph/step_state.h"

namespace bonfire {

class RecomputeScope;
class VariableShares;
class Tensor;
class Trace;
class Variable;
class VariableCopies;
namespace optim {
class Optimizer;
}

// The seed and the number of the step that submissions read; see base/random.h.
struct RandomState {
  uint64_t seed = 0x5eed;
  uint64_t step = 0;
  uint64_t parameters = 0;  // drawn so far; the next one has the stream of this number (nn/init.h)
  // Row i of a batch is row i · world + rank of all ranks', and draws its numbers. Of a block: rank is its first row.
  uint64_t rank = 0, world = 1;
};

// What is to be done as soon as a step has failed, be it in a kernel, in compiling it, or by a number that is none. Any
// thread may call it.
using FailureCalls = Hooks<void(const std::string& why)>::List;
void tell(const FailureCalls& calls, const std::string& why);

bool all_say(const Hooks<bool()>& hooks);

// The job whose steps these are: parallel/job.h.
class StepJob {
 public:
  virtual ~StepJob() = default;
};

// The groups that the axes of the mesh mean to the collectives of a step: comm/axis_groups.h. Each submission keeps
// those that it was made with, so a plan knows axes alone.
class StepGroups {
 public:
  virtual ~StepGroups() = default;
};

// Where this thread is while it traces: trace.h has the scopes that change it.
struct TracingPlace {
  Trace* trace = nullptr;             // this thread's own, once there is one
  Trace* other = nullptr;             // the one that a TraceScope has put in its place
  uint64_t next_sequence = 1;         // of nodes; see Node::sequence
  const std::string* path = nullptr;  // of the module
  Origin origin;
  Phase phase = Phase::forward;
  bool grad_enabled = true;
  const VariableCopies* copies = nullptr;  // that stand for variables: variable_copies.h
  StepRecord* record = nullptr;            // of the step that is traced for compile(): step_state.h
  uint64_t values_fetched = 0;             // by the host
  bool skips_first_values = false;         // of parameters: nn::init::Skip
  RecomputeScope* recompute = nullptr;     // the innermost: recompute.h
};

struct StepContext {
  StepContext();
  StepContext(const StepContext&) = delete;
  StepContext& operator=(const StepContext&) = delete;
  ~StepContext();
  static StepContext& current() { return here != nullptr ? *here : first_use(); }  // this thread's

  const uint64_t number;  // no other context of the process has it

  StepOptions options;
  Mesh mesh;           // of the job; part of the key of a compiled step, as the options are
  RandomState random;  // manual_seed sets it, and that of threads that start later

  // Each is given the gradient of a loss by itself that the one before has made of 1, and gives another: a weight, a
  // scale. At the beginning of every backward().
  Hooks<Tensor(const Tensor& seed)> before_backward;
  // At the end of every backward(), with the variables whose gradients it has written, in the order in which those
  // appeared: data parallel appends its all-reduces there.
  Hooks<void(std::span<const Variable> written)> after_backward;
  // Whether a backward() reduces gradients over the ranks: all must say so, else they stay this rank's own.
  Hooks<bool()> reduces_gradients;
  // Whether the backward() before is the last one of an update: all must say so. Until then neither clipping nor
  // Optimizer::step() changes anything.
  Hooks<bool()> update_is_due;
  // Whether gradients have done their work: all must say so, else Optimizer::clear_grad() leaves them.
  Hooks<bool()> gradients_are_done;
  // For each parameter with a gradient: an update counts only where all answers, each one boolean [1] that is computed
  // with the step, are true. Undefined: it counts.
  Hooks<Tensor(const Variable& parameter)> update_conditions;
  // After an optimizer has appended its updates, before the step is committed: more to be done with new parameters.
  Hooks<void(const optim::Optimizer& optimizer)> after_update;
  // After an optimizer's rate was set.
  Hooks<void(const optim::Optimizer& optimizer)> after_rate;
  // At the end of every Optimizer::step(), whether it has updated or not.
  Hooks<void(const optim::Optimizer& optimizer)> after_step;
  Hooks<void(const std::string& why)> after_failure;  // data parallel ends the waits of its peers there
  void tell_failure(const std::string& why) const { tell(after_failure.calls(), why); }

  VariableShares* shares = nullptr;    // of the job: variables that its ranks share out (variable_shares.h); null: none
  bool told_of_kept_parts = false;     // that recompute has found cut apart (runtime/engine.cpp)
  StepState<int> without_reduction;    // how many fleet::WithoutReduction live
  std::unique_ptr<StepJob> job;        // null: this thread has joined none
  std::shared_ptr<StepGroups> groups;  // of the job; null: it has none

  TracingPlace place;

 private:
  static StepContext& first_use();
  static constinit thread_local StepContext* here;  // asked for all the time
};

}  // namespace bonfire
