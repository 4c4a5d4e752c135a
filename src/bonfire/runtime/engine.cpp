// The engine: what a commit does. Live values and what histories need → plan → submission → values get their buffers.

#include "bonfire/graph/engine.h"

#include <algorithm>

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/passes/recompute.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/submit.h"

namespace bonfire::runtime {

namespace {

bool has_unconsumed_history(const Node& node) { return node.recorded && !node.consumed; }

bool has_effects(const Trace& trace) {
  return std::any_of(trace.nodes().begin(), trace.nodes().end(),
                     [](const NodePtr& node) { return node->op->has(Trait::stateful); });
}

// Values that someone can ask for after the commit: those with handles, then what their histories need.
std::vector<Value> live_values(const Trace& trace) {
  std::vector<Value> live;
  bool histories = false;
  for (const NodePtr& node : trace.nodes()) {
    for (uint32_t i = 0; i < node->outputs.size(); ++i) {
      if (node->outputs[i].handles.load(std::memory_order_relaxed) == 0) continue;
      live.push_back({node, i});
      histories |= has_unconsumed_history(*node);
    }
  }
  std::vector<Value> needed;
  if (histories) needed = autodiff::values_needed_later(trace, live);
  auto add = [&](const Value& value) {
    if (std::find(live.begin(), live.end(), value) == live.end()) live.push_back(value);
  };
  for (const Value& value : needed) {
    if (trace.pending(value)) add(value);
    if (value.node->variable) value.node->needed_by_history = true;
  }
  for (const Assignment& assignment : trace.assignments()) {
    const Value& old = trace.leaves()[assignment.leaf];
    if (old.node->wanted() || std::find(needed.begin(), needed.end(), old) != needed.end()) add(old);
  }
  return live;
}

// A replaced version of a variable that someone still holds becomes a plain tensor with the copy as its memory.
void give_buffer(const Value& value, Buffer buffer, const std::shared_ptr<Completion>& ready) {
  Node& node = *value.node;
  if (node.leaf == LeafKind::variable) {
    node.leaf = LeafKind::feed;
    node.committed = true;
  }
  node.outputs[value.index].buffer = std::move(buffer);
  node.outputs[value.index].ready = ready;
}

class PlanningEngine final : public Engine {
 public:
  PlanningEngine() { register_engine(this); }

  void commit(Trace& trace) override {
    if (trace.empty()) return;
    try {
      run(trace);
    } catch (const std::exception& error) {
      trace.clear();
      StepContext::current().tell_failure(error.what());
      throw;
    }
  }

  void synchronize() override { synchronize_submissions(); }

 private:
  static void run(Trace& trace) {
    std::vector<Value> live = live_values(trace);
    if (live.empty() && trace.assignments().empty() && !has_effects(trace)) {  // nothing of it can be asked for
      finish(trace);
      return;
    }
    tell_of_kept_parts(trace, live);
    std::shared_ptr<Plan> plan = find_or_compile(trace, live, StepContext::current().options);
    adopt_layouts(*plan, trace.leaves());
    std::vector<Variable> assigned;
    for (const Assignment& assignment : trace.assignments()) assigned.push_back(assignment.variable);
    SubmissionResult result = submit(plan, trace.leaves(), assigned);
    for (size_t i = 0; i < live.size(); ++i) give_buffer(live[i], std::move(result.outputs[i]), result.completion);
    finish(trace);
  }

  // A backward pass that comes in another commit finds what this one has kept.
  static void tell_of_kept_parts(const Trace& trace, std::span<const Value> live) {
    StepContext& context = trace.context();
    if (context.told_of_kept_parts || !(trace.has_recomputed_parts() || !context.options.recompute.empty())) return;
    for (const Node* node : autodiff::reachable_history(trace, live)) {
      const bool is_in_module = node->path != nullptr && passes::is_in_recomputed_module(*node->path, context.options);
      if (node->recomputed_part == 0 && !is_in_module) continue;
      context.told_of_kept_parts = true;
      base::log_warning(
          "[recompute] a step was committed between its forward and its backward pass (a value was read, or another "
          "backward() came first): what {} computes is kept; compile() the step, or read values after backward()",
          node->path == nullptr ? "a part that is marked" : "module " + *node->path);
      return;
    }
  }

  static void finish(Trace& trace) {
    for (const NodePtr& node : trace.nodes()) {
      node->committed = true;
      if (has_unconsumed_history(*node)) {
        node->count_history_uses();
      } else {
        node->inputs.clear();
      }
    }
    trace.clear();
    ++StepContext::current().random.step;
  }
};

PlanningEngine planning_engine;

}  // namespace
}  // namespace bonfire::runtime
