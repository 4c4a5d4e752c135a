#pragma once
// Trace: what this thread has asked for and not yet run, in order, with a running hash of its structure. Appending a
// node costs well under a microsecond; a commit hands the trace to the engine, which finds the plan of that hash.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/graph/node.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/variable.h"

namespace bonfire {

inline void mix_spec(base::Hash128& hash, const TensorSpec& spec) {
  hash.mix((static_cast<uint64_t>(spec.dtype) << 40) | (static_cast<uint64_t>(spec.device.type) << 32) |
           (static_cast<uint64_t>(static_cast<uint16_t>(spec.device.index)) << 8) |
           static_cast<uint64_t>(spec.shape.rank()));
  for (int64_t extent : spec.shape) hash.mix(static_cast<uint64_t>(extent));
}

struct Assignment {
  Variable variable;
  Value value;
  uint32_t leaf;  // position of the variable among the trace's leaves
};

class Trace {
 public:
  Trace();
  ~Trace();  // what is still pending is dropped, from variables too
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  static Trace& current();  // this thread's

  const NodePtr& append(const Op& op, NodeInputs&& inputs, Attributes&& attributes);
  void assign(const Variable& variable, const Value& value);
  Value read(const Variable& variable);
  Value scalar(std::shared_ptr<double> cell, DType dtype, Device device);
  // i64 [4]: seed, step, rank and world (RandomState), as a value of this trace, so that a later backward pass sees
  // those of its forward pass.
  Value random_key(Device device);

  bool empty() const { return nodes_.empty() && assignments_.empty(); }
  StepContext& context() const { return context_; }  // of the thread that made it
  uint64_t id() const { return id_; }
  const std::vector<NodePtr>& nodes() const { return nodes_; }
  const std::vector<Value>& leaves() const { return leaves_; }                 // in order of first use
  const std::vector<Assignment>& assignments() const { return assignments_; }  // the last one of each variable
  const base::Hash128& hash() const { return hash_; }
  bool pending(const Value& value) const { return value.node->trace == id_ && !value.node->is_leaf(); }
  uint32_t leaf_position(const Value& value);  // adds it when new

  // A part of the step that the backward pass computes again, inside another one (0: none). Its number, from 1.
  uint32_t add_recomputed_part(uint32_t outer);
  bool has_recomputed_parts() const { return !recomputed_parts_.empty(); }
  // The numbers of a part and of those around it, outermost first.
  const std::vector<int>& recomputed_parts(uint32_t part) const { return recomputed_parts_[part - 1]; }

  uint32_t next_random_number() { return random_numbers_++; }  // op number for random ops, counted within a step
  bool compiling = false;     // belongs to compile(): commits are left to it, reading a value is an error
  bool has_backward = false;  // a backward pass is pending; another one commits it first

  void clear();  // after a commit: forgets everything, and takes a new id

 private:
  uint64_t encode(const Value& value);
  void mark_recomputed(Node& node, RecomputeScope& scope);

  StepContext& context_;
  uint64_t id_;
  std::vector<NodePtr> nodes_;
  std::vector<Value> leaves_;
  std::vector<Assignment> assignments_;
  struct LeafSlot {
    const Node* node = nullptr;
    uint32_t index = 0, position = 0;
  };
  std::vector<std::vector<int>> recomputed_parts_;  // [part - 1]
  std::vector<LeafSlot> leaf_table_;                // open addressing, a power of two
  base::Hash128 hash_;
  uint32_t random_numbers_ = 0;
  std::vector<Value> random_keys_;  // one a device
};

// Makes another trace this thread's current one while it lives (a dry run, a step being compiled).
class TraceScope {
 public:
  explicit TraceScope(Trace& trace);
  static bool active();  // this thread's current trace is such another one
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* before_;
};

// Names the module whose ops are being traced: nodes carry "layer2.0.conv1". An empty name adds nothing.
class PathScope {
 public:
  explicit PathScope(std::string_view name);
  ~PathScope();
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  const std::string* before_;
};

// What is traced while it lives belongs to that phase.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase before_;
};

// What is traced while it lives computes gradients of that node: it has its path, and it as origin.
class GradientScope {
 public:
  explicit GradientScope(const Node& node)
      : place_(StepContext::current().place),
        phase_before_(place_.phase),
        path_before_(place_.path),
        origin_before_(place_.origin) {
    place_.phase = Phase::backward;
    place_.path = node.path;
    place_.origin = {node.trace, node.position};
  }
  ~GradientScope() {
    place_.phase = phase_before_;
    place_.path = path_before_;
    place_.origin = origin_before_;
  }
  GradientScope(const GradientScope&) = delete;
  GradientScope& operator=(const GradientScope&) = delete;

 private:
  TracingPlace& place_;
  Phase phase_before_;
  const std::string* path_before_;
  Origin origin_before_;
};

// " in module layer2.0.conv1" while its ops are traced, else "": for messages.
std::string in_current_module();

bool grad_enabled();
void set_grad_enabled(bool enabled);

// Debugging: every op is committed as soon as it is traced and its float results are checked for NaN and infinity; the
// error names the op and the module. Also switched on by BONFIRE_CHECK_NUMBERS=1.
void set_check_numbers(bool on);
bool check_numbers();

}  // namespace bonfire
