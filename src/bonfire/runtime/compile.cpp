#include "bonfire/runtime/compile.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/runtime/launch.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire {

namespace {

// One signature, traced: everything a launch needs.
struct Traced {
  std::vector<TensorSpec> signature;
  bool of_stand_ins = passes::current_options().stand_ins;
  std::shared_ptr<runtime::Plan> plan;
  std::vector<Value> leaves;
  std::vector<int> input_of_leaf;  // which argument a leaf stands for, or -1
  std::vector<Variable> assigned;
  std::vector<int> outputs;  // for each returned tensor: the plan's output, or -1 - argument for an input itself
};

bool fits(const Traced& traced, std::span<const Tensor> inputs) {
  if (traced.signature.size() != inputs.size() || traced.of_stand_ins != passes::current_options().stand_ins)
    return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!(traced.signature[i] == inputs[i].spec())) return false;
  // A variable that was moved to another device since is another step.
  return std::all_of(traced.leaves.begin(), traced.leaves.end(), [](const Value& leaf) {
    return leaf.node->leaf != LeafKind::variable || leaf.node->variable->spec == leaf.spec();
  });
}

Tensor stand_in(const TensorSpec& spec) {
  auto node = base::make_intrusive<Node>();
  node->leaf = LeafKind::feed;
  node->committed = true;
  node->outputs.emplace_back(spec);
  return Tensor(Value{std::move(node), 0});
}

// The outputs of the plan that stand for what the function returned.
std::vector<Value> live_of(const Trace& trace, const std::vector<Tensor>& returned,
                           const std::vector<Tensor>& stand_ins, Traced& traced) {
  std::vector<Value> live;
  for (const Tensor& tensor : returned) {
    if (!tensor.defined()) throw_error<GraphError>("[compile] the step returned an undefined tensor");
    auto is_same = [&](const Tensor& input) { return input.value() == tensor.value(); };
    auto argument = std::find_if(stand_ins.begin(), stand_ins.end(), is_same);
    if (argument != stand_ins.end()) {
      traced.outputs.push_back(-1 - static_cast<int>(argument - stand_ins.begin()));
      continue;
    }
    if (!trace.pending(tensor.value()) && tensor.value().node->leaf != LeafKind::variable)
      throw_error<GraphError>("[compile] the step returned a tensor that it did not compute");
    traced.outputs.push_back(static_cast<int>(live.size()));
    live.push_back(tensor.value());
  }
  return live;
}

Traced trace_step(const CompiledStep::Function& function, std::span<const Tensor> inputs) {
  Traced traced;
  std::vector<Tensor> stand_ins;
  for (const Tensor& input : inputs) {
    traced.signature.push_back(input.spec());
    stand_ins.push_back(stand_in(input.spec()));
  }
  Trace trace;
  trace.compiling = true;
  TraceScope scope(trace);
  std::vector<Tensor> returned = function(stand_ins);
  std::vector<Value> live = live_of(trace, returned, stand_ins, traced);
  traced.plan = runtime::find_or_compile(trace, live, passes::current_options());
  for (const Value& leaf : trace.leaves()) {
    int argument = -1;
    for (size_t i = 0; i < stand_ins.size(); ++i)
      if (leaf == stand_ins[i].value()) argument = static_cast<int>(i);
    traced.leaves.push_back(leaf);
    traced.input_of_leaf.push_back(argument);
  }
  runtime::adopt_layouts(*traced.plan, traced.leaves);
  for (const Assignment& assignment : trace.assignments()) traced.assigned.push_back(assignment.variable);
  for (const NodePtr& node : trace.nodes()) {
    node->committed = true;
    node->inputs.clear();
  }
  trace.clear();
  return traced;
}

}  // namespace

struct CompiledStep::State {
  Function function;
  std::vector<Traced> traced_steps;  // one for each signature

  std::vector<Tensor> run(std::span<const Tensor> inputs);
};

CompiledStep::CompiledStep(Function function) : state_(std::make_unique<State>(State{std::move(function), {}})) {}
CompiledStep::~CompiledStep() = default;
CompiledStep::CompiledStep(CompiledStep&&) noexcept = default;
CompiledStep& CompiledStep::operator=(CompiledStep&&) noexcept = default;

int CompiledStep::traced() const { return static_cast<int>(state_->traced_steps.size()); }

std::vector<Tensor> CompiledStep::run(std::span<const Tensor> inputs) {
  try {
    return state_->run(inputs);
  } catch (const std::exception& error) {  // what it has traced is lost
    tell_step_failure(error.what());
    throw;
  }
}

std::vector<Tensor> CompiledStep::State::run(std::span<const Tensor> inputs) {
  commit();                                      // what was traced outside comes first
  if (check_numbers()) return function(inputs);  // op by op, as they are traced
  Traced* traced = nullptr;
  for (Traced& one : traced_steps)
    if (fits(one, inputs)) traced = &one;
  if (traced == nullptr) traced = &traced_steps.emplace_back(trace_step(function, inputs));

  for (size_t i = 0; i < traced->leaves.size(); ++i)
    if (int argument = traced->input_of_leaf[i]; argument >= 0) traced->leaves[i] = inputs[argument].value();
  for (const Variable& variable : traced->assigned) variable.keep_version_for_holders();
  runtime::LaunchResult result = runtime::launch(traced->plan, traced->leaves, traced->assigned);
  ++random_state().step;

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
