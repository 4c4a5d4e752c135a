#include "bonfire/runtime/compile.h"

#include <algorithm>
#include <unordered_map>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/feed.h"
#include "bonfire/graph/step_state.h"
#include "bonfire/graph/variable_moves.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/plan_of_step.h"
#include "bonfire/runtime/submit.h"

namespace bonfire {

namespace {

constexpr uint64_t kNever = UINT64_MAX;

// A step, traced for one key: everything a submission needs.
struct Traced {
  StepRecord states;  // of the host, that it has read and written
  uint64_t last_call = 0;
  uint64_t moves_seen = kNever;  // by variables, before all of them were seen to lie as the plan has them
  std::shared_ptr<runtime::Plan> plan;
  std::vector<Value> leaves;
  std::vector<int> input_of_leaf;                    // which argument a leaf stands for, or -1
  std::vector<std::shared_ptr<const Slice>> slices;  // of the leaves that are variables
  std::vector<Value> without_gradient;               // tensors from outside that required none
  std::vector<Variable> assigned;
  std::vector<int> outputs;  // for each returned tensor: the plan's output, or -1 - argument for an input itself
};

// What shapes a trace is known before it but for the host's states, which only tracing finds out: what a step has read
// of these, and the variables that it uses, are compared one by one (fits).
base::Hash128 key_of(std::span<const Tensor> inputs) {
  base::Hash128 key;
  for (const Tensor& input : inputs) mix_spec(key, input.spec());
  key.mix(static_cast<uint64_t>(grad_enabled()));
  const StepContext& context = StepContext::current();
  key.mix(context.number);  // hooks and scopes belong to a thread
  runtime::mix_surroundings(key, context.options, context.mesh);
  return key;
}

bool fits(const Traced& traced) {
  if (!traced.states.holds()) return false;
  for (const Value& captured : traced.without_gradient)
    if (captured.node->outputs[captured.index].requires_grad) return false;
  if (traced.moves_seen == variable_moves()) return true;
  // A variable that was moved to another device since, or has another slice, is another step.
  for (size_t i = 0; i < traced.leaves.size(); ++i) {
    const Value& leaf = traced.leaves[i];
    if (leaf.node->leaf != LeafKind::variable) continue;
    const VariableState& state = *leaf.node->variable;
    if (!(state.stored == leaf.spec()) || state.slice != traced.slices[i]) return false;
  }
  return runtime::layouts_fit(*traced.plan, traced.leaves);
}

// Inputs as a submission can bind them: in memory of their own.
std::vector<Tensor> realised(std::span<const Tensor> inputs) {
  std::vector<Tensor> list(inputs.begin(), inputs.end());
  bool copies = false;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].defined()) throw_error<GraphError>("[compile] argument {} of the step is an undefined tensor", i);
    if (list[i].requires_grad() && grad_enabled() && list[i].value().node->leaf != LeafKind::variable)
      throw_error<GraphError>(
          "[compile] argument {} of the step requires a gradient, and none can flow out of a compiled step; pass its "
          "detach(), or let the step compute it from parameters",
          i);
    if (list[i].value().node->leaf != LeafKind::variable) continue;
    list[i] = list[i].detach();
    copies = true;
  }
  if (copies) commit();
  return list;
}

// The outputs of the plan that stand for what the function returned.
std::vector<Value> live_of(const Trace& trace, const std::vector<Tensor>& returned, const std::vector<Tensor>& feeds,
                           Traced& traced) {
  std::vector<Value> live;
  for (const Tensor& tensor : returned) {
    if (!tensor.defined()) throw_error<GraphError>("[compile] the step returned an undefined tensor");
    auto is_same = [&](const Tensor& input) { return input.value() == tensor.value(); };
    auto argument = std::find_if(feeds.begin(), feeds.end(), is_same);
    if (argument != feeds.end()) {
      traced.outputs.push_back(-1 - static_cast<int>(argument - feeds.begin()));
      continue;
    }
    if (!trace.pending(tensor.value()) && tensor.value().node->leaf != LeafKind::variable)
      throw_error<GraphError>("[compile] the step returned a tensor that it did not compute");
    traced.outputs.push_back(static_cast<int>(live.size()));
    live.push_back(tensor.value());
  }
  return live;
}

std::vector<Tensor> call_recorded(const CompiledStep::Function& function, std::span<const Tensor> feeds,
                                  StepRecord& states) {
  StepRecording recording(states);
  try {
    std::vector<Tensor> returned = function(feeds);
    states.finish();
    return returned;
  } catch (...) {
    states.undo();
    throw;
  }
}

Traced trace_step(const CompiledStep::Function& function, std::span<const TensorSpec> inputs) {
  Traced traced;
  std::vector<Tensor> feeds;
  for (const TensorSpec& input : inputs) feeds.push_back(make_feed(input));
  Trace trace;
  trace.compiling = true;
  TraceScope scope(trace);
  std::vector<Tensor> returned = call_recorded(function, feeds, traced.states);
  std::vector<Value> live = live_of(trace, returned, feeds, traced);
  traced.plan = runtime::find_or_compile(trace, live, StepContext::current().options);
  for (const Value& leaf : trace.leaves()) {
    int argument = -1;
    for (size_t i = 0; i < feeds.size(); ++i)
      if (leaf == feeds[i].value()) argument = static_cast<int>(i);
    traced.leaves.push_back(leaf.node->leaf == LeafKind::variable ? any_version(leaf) : leaf);
    const bool is_from_outside = leaf.node->leaf == LeafKind::feed && argument < 0;
    if (is_from_outside && !leaf.node->outputs[leaf.index].requires_grad) traced.without_gradient.push_back(leaf);
    traced.input_of_leaf.push_back(argument);
    traced.slices.push_back(leaf.node->variable ? leaf.node->variable->slice : nullptr);
  }
  for (const Assignment& assignment : trace.assignments()) traced.assigned.push_back(assignment.variable);
  for (const NodePtr& node : trace.nodes()) {
    node->committed = true;
    node->inputs.clear();
  }
  trace.clear();
  return traced;
}

}  // namespace

namespace runtime {

std::shared_ptr<const Plan> plan_of_step(const CompiledStep::Function& function, std::span<const TensorSpec> inputs) {
  const Traced traced = trace_step(function, inputs);
  traced.states.undo();
  return traced.plan;
}

}  // namespace runtime

struct CompiledStep::State {
  Function function;
  std::unordered_map<base::Hash128, std::vector<Traced>> traced_steps = {};  // by key_of
  uint64_t calls = 0;
  int traced = 0;

  std::vector<Tensor> run(std::span<const Tensor> inputs);
  Traced& find_or_trace(std::span<const Tensor> inputs);
  void drop_unused();
};

CompiledStep::CompiledStep(Function function) : state_(std::make_unique<State>(State{std::move(function)})) {}
CompiledStep::~CompiledStep() = default;
CompiledStep::CompiledStep(CompiledStep&&) noexcept = default;
CompiledStep& CompiledStep::operator=(CompiledStep&&) noexcept = default;

int CompiledStep::traced() const { return state_->traced; }

int CompiledStep::kept() const {
  size_t count = 0;
  for (const auto& [key, steps] : state_->traced_steps) count += steps.size();
  return static_cast<int>(count);
}

std::vector<Tensor> CompiledStep::run(std::span<const Tensor> inputs) {
  try {
    return state_->run(inputs);
  } catch (const std::exception& error) {  // what it has traced is lost
    StepContext::current().tell_failure(error.what());
    throw;
  }
}

// Inputs that no longer come (another length of text at each step) must not fill the memory.
void CompiledStep::State::drop_unused() {
  constexpr uint64_t kLookEvery = 100;  // calls
  if (calls % kLookEvery != 0) return;
  for (auto& [key, steps] : traced_steps)
    std::erase_if(steps, [&](const Traced& one) { return one.last_call + runtime::kDropAfter < calls; });
  std::erase_if(traced_steps, [](const auto& item) { return item.second.empty(); });
}

Traced& CompiledStep::State::find_or_trace(std::span<const Tensor> inputs) {
  ++calls;
  drop_unused();
  std::vector<Traced>& known = traced_steps[key_of(inputs)];
  auto found = std::find_if(known.begin(), known.end(), fits);
  if (found == known.end()) {
    std::vector<TensorSpec> specs;
    for (const Tensor& input : inputs) specs.push_back(input.spec());
    known.push_back(trace_step(function, specs));
    ++traced;
    found = known.end() - 1;
  } else {
    found->states.leave();
  }
  found->last_call = calls;
  return *found;
}

std::vector<Tensor> CompiledStep::State::run(std::span<const Tensor> given) {
  if (Trace::current().compiling) return function(given);  // a part of the step that is being traced
  commit();                                                // what was traced outside comes first
  if (check_numbers()) return function(given);             // op by op, as they are traced
  const std::vector<Tensor> inputs = realised(given);
  Traced* traced = &find_or_trace(inputs);

  for (size_t i = 0; i < traced->leaves.size(); ++i)
    if (int argument = traced->input_of_leaf[i]; argument >= 0) traced->leaves[i] = inputs[argument].value();
  if (const uint64_t moves = variable_moves(); traced->moves_seen != moves) {
    runtime::adopt_layouts(*traced->plan, traced->leaves);
    traced->moves_seen = moves;
  }
  for (const Variable& variable : traced->assigned) variable.keep_version_for_holders();
  runtime::SubmissionResult result = runtime::submit(traced->plan, traced->leaves, traced->assigned);
  ++StepContext::current().random.step;

  std::vector<Tensor> outputs;
  for (int position : traced->outputs) {
    if (position < 0) {
      outputs.push_back(inputs[-1 - position]);
      continue;
    }
    Tensor output = Tensor::from_buffer(result.outputs[position], traced->plan->outputs[position]);
    output.value().node->outputs[0].ready = result.completion;
    outputs.push_back(std::move(output));
  }
  return outputs;
}

}  // namespace bonfire
