#include "bonfire/autodiff/backward.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/feed.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/variable_shares.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire {

namespace {

std::string where_text(const Node& node) { return node.path == nullptr ? "" : " in module " + *node.path; }

Tensors apply_rule(Node& node, std::span<const Tensor> gradients) {
  if (node.op->gradient == nullptr)
    throw_error<GraphError>("[{}]{} has no gradient{}; use detach() where none should flow", node.op->name,
                            where_text(node), grad_enabled() ? " of its own (second derivative)" : "");
  GradientScope scope(node);
  Tensors result = node.op->gradient(GradientContext(node, gradients));
  BONFIRE_CHECK(result.size() == node.inputs.size(), "the gradient rule of {} gave {} tensors for {} inputs",
                node.op->name, result.size(), node.inputs.size());
  return result;
}

// One reverse walk: every node that a gradient can flow through, users before inputs.
class Walk {
 public:
  explicit Walk(const Tensor& output) {
    static std::atomic<uint64_t> next_walk{1};
    walk_ = next_walk.fetch_add(1);
    visit(output.value().node.get());
    for (size_t i = 0; i < stack_.size(); ++i)  // grows while it is read
      for (const Value& input : stack_[i]->inputs)
        if (input.node->outputs[input.index].requires_grad) visit(input.node.get());
    // Nodes of two threads may have the same number: then neither reads the other, and the one met first goes first.
    std::sort(stack_.begin(), stack_.end(), [](const Node* a, const Node* b) {
      return a->sequence != b->sequence ? a->sequence > b->sequence : a->walk_slot < b->walk_slot;
    });
    stack_.insert(stack_.end(), leaves_.begin(), leaves_.end());
    gradients_.resize(stack_.size());
    last_user_.resize(stack_.size(), kNobody);
    for (size_t i = 0; i < stack_.size(); ++i) {
      stack_[i]->walk_slot = static_cast<uint32_t>(i);
      gradients_[i].resize(stack_[i]->outputs.size());
    }
    for (size_t i = 0; i < stack_.size(); ++i)
      if (stack_[i]->recorded)
        for (const Value& input : stack_[i]->inputs)
          if (input.node->walk == walk_) last_user_[input.node->walk_slot] = i;
  }

  // `user`: the node that this gradient comes from.
  void add(const Value& value, const Tensor& gradient, const Node& user) {
    Tensor& sum = gradients_[value.node->walk_slot][value.index];
    if (!sum.defined()) {
      sum = gradient;
      return;
    }
    GradientScope scope(value.node->is_leaf() ? user : *value.node);
    sum = bonfire::add(sum, gradient);
  }

  const Tensor& gradient(const Value& value) const {
    static const Tensor none;
    return value.node->walk == walk_ ? gradients_[value.node->walk_slot][value.index] : none;
  }

  // Calls on_leaf(node, gradient) for what has no history, as soon as its gradient is complete.
  template <class OnLeaf>
  void run(OnLeaf&& on_leaf) {
    auto finish = [&](Node& leaf, size_t user) {
      size_t& last_user = last_user_[leaf.walk_slot];
      const Tensor& gradient = gradients_[leaf.walk_slot][0];
      if (last_user == user && gradient.defined()) on_leaf(leaf, gradient);
      if (last_user == user) last_user = kDone;  // a node may read a leaf twice
    };
    for (size_t i = 0; i < stack_.size(); ++i) {
      Node& node = *stack_[i];
      if (!node.recorded) {
        finish(node, kNobody);
        continue;
      }
      pass_through(node);
      for (const Value& input : node.inputs) {
        if (input.node->walk != walk_ || input.node->recorded) continue;
        GradientScope scope(node);
        finish(*input.node, i);
      }
    }
  }

  // What ranks have made of a variable together they make once for several losses.
  static bool is_shared(const Node& node) {
    return node.op->has(Trait::collective) &&
           std::ranges::all_of(node.inputs, [](const Value& input) { return input.node->leaf == LeafKind::variable; });
  }

  void consume() {
    for (Node* node : stack_) {
      if (!node->recorded || is_shared(*node)) continue;
      node->forget_history_uses();
      node->consumed = true;
      if (node->committed) node->inputs.clear();
    }
  }

 private:
  static constexpr size_t kNobody = SIZE_MAX, kDone = SIZE_MAX - 1;

  // Gives the node's inputs their gradients.
  void pass_through(Node& node) {
    base::InlineVector<Tensor, 1>& gradients = gradients_[node.walk_slot];
    if (std::none_of(gradients.begin(), gradients.end(), [](const Tensor& one) { return one.defined(); })) return;
    if (node.consumed)
      throw_error<GraphError>(
          "[backward] the history through [{}]{} was already used by an earlier backward(); pass retain_graph to "
          "that one",
          node.op->name, where_text(node));
    Tensors inputs = apply_rule(node, {gradients.data(), gradients.size()});
    for (size_t k = 0; k < inputs.size(); ++k) {
      const Value& input = node.inputs[k];
      if (!inputs[k].defined() || !input.node->outputs[input.index].requires_grad) continue;
      BONFIRE_CHECK(inputs[k].spec() == input.spec(), "the gradient rule of {} gave {} for input {} of {}",
                    node.op->name, to_string(inputs[k].spec()), k, to_string(input.spec()));
      add(input, inputs[k], node);
    }
  }

  void visit(Node* node) {
    if (node->walk == walk_) return;
    node->walk = walk_;
    node->walk_slot = static_cast<uint32_t>(held_.size());
    held_.push_back(NodePtr(node));
    (node->recorded ? stack_ : leaves_).push_back(node);
  }

  uint64_t walk_;
  std::vector<Node*> stack_;   // of which the leaves are last
  std::vector<Node*> leaves_;  // whatever has no history
  std::vector<NodePtr> held_;  // consume() may drop the last reference to a node further down
  std::vector<base::InlineVector<Tensor, 1>> gradients_;
  std::vector<size_t> last_user_;  // of each node: the last one in the stack that its gradient comes from
};

// Restores recording when it goes.
class GradMode {
 public:
  explicit GradMode(bool enabled) : before_(grad_enabled()) { set_grad_enabled(enabled); }
  ~GradMode() { set_grad_enabled(before_); }
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_;
};

Tensor seed_for(const Tensor& output, const Tensor& cotangent) {
  if (!output.defined()) throw_error<GraphError>("[backward] the loss is an undefined tensor");
  if (!output.requires_grad())
    throw_error<GraphError>(
        "[backward] the loss does not depend on anything that requires a gradient (was it computed under NoGrad, or "
        "detached?)");
  if (cotangent.defined()) {
    if (!(cotangent.spec() == output.spec()))
      throw_error<ShapeError>("[backward] the cotangent is {}, the output {}", to_string(cotangent.spec()),
                              to_string(output.spec()));
    return cotangent;
  }
  if (output.shape().count() != 1)
    throw_error<ShapeError>("[backward] the loss has shape {}; backward() needs one element: use sum() or mean() first",
                            to_string(output.shape()));
  return ones_like(output);
}

// A leaf's gradient is a variable: written after clear_grad, added to otherwise.
void deliver(Node& leaf, const Tensor& gradient) {
  if (leaf.variable) {
    Variable variable(leaf.variable);
    VariableState& state = variable.state();
    if (!state.requires_grad) return;  // frozen since the forward pass
    VariableShares* shared = Trace::current().context().shares;
    if (shared != nullptr && shared->take(variable, gradient)) return;
    Variable target = variable.grad_variable();
    target.assign_stored(state.gradient_is_clear ? gradient : add(target.stored(), gradient));
    state.gradient_is_clear = false;
    return;
  }
  // Whether there is one already, and what it is, are known to this trace alone.
  if (Trace::current().compiling && leaf.outputs[0].buffer)
    throw_error<GraphError>(
        "[compile] a compiled step gives no gradient to a tensor from outside that is no variable ({}); make it a "
        "Variable that requires a gradient, or call the step without compile()",
        to_string(leaf.outputs[0].spec));
  if (!leaf.leaf_gradient) {
    leaf.leaf_gradient = Variable(gradient.spec()).pointer();
    Variable(leaf.leaf_gradient).assign(gradient);
  } else {
    Variable target(leaf.leaf_gradient);
    target.assign(add(target.value(), gradient));
  }
}

}  // namespace

void Tensor::backward(BackwardOptions options) const {
  Trace& trace = Trace::current();
  if (trace.has_backward) commit();
  GradMode mode(options.create_graph);
  PhaseScope phase(Phase::backward);
  Tensor seed = seed_for(*this, {});
  const StepContext& context = trace.context();
  const auto before = context.before_backward.calls();
  for (const auto& hook : *before) seed = hook.call(seed);
  Walk walk(*this);
  walk.add(value_, seed, *value_.node);
  std::vector<Variable> written;
  walk.run([&](Node& leaf, const Tensor& gradient) {
    deliver(leaf, gradient);
    if (leaf.variable) written.emplace_back(leaf.variable);
  });
  if (!options.retain_graph && !options.create_graph) walk.consume();
  Trace::current().has_backward = true;
  const auto after = context.after_backward.calls();
  for (const auto& hook : *after) hook.call(written);
}

std::vector<Tensor> grad(const Tensor& output, std::span<const Tensor> inputs, const GradOptions& options) {
  GradMode mode(options.create_graph);
  PhaseScope phase(Phase::backward);
  Tensor seed = seed_for(output, options.cotangent);
  Walk walk(output);
  walk.add(output.value(), seed, *output.value().node);
  walk.run([](Node&, const Tensor&) {});
  std::vector<Tensor> result;
  for (const Tensor& input : inputs) result.push_back(walk.gradient(input.value()));
  if (!options.retain_graph && !options.create_graph) walk.consume();
  return result;
}

namespace autodiff {

std::vector<Node*> reachable_history(const Trace& trace, std::span<const Value> live) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> reached;
  auto visit = [&](Node* node) {
    if (node->recorded && !node->consumed && trace.pending({NodePtr(node), 0}) && seen.insert(node).second)
      reached.push_back(node);
  };
  for (const Value& value : live) visit(value.node.get());
  for (size_t i = 0; i < reached.size(); ++i)
    for (const Value& input : reached[i]->inputs) visit(input.node.get());
  return reached;
}

std::vector<Value> values_needed_later(const Trace& trace, std::span<const Value> live) {
  std::vector<Node*> history = reachable_history(trace, live);
  std::vector<Value> needed;
  if (history.empty()) return needed;
  auto consider = [&](const Value& value) {
    bool ours = trace.pending(value) || value.node->leaf == LeafKind::variable;
    if (ours && std::find(needed.begin(), needed.end(), value) == needed.end()) needed.push_back(value);
  };
  std::sort(history.begin(), history.end(), [](const Node* a, const Node* b) { return a->position < b->position; });
  Trace scratch;
  TraceScope scope(scratch);
  NoGrad no_grad;
  for (Node* node : history) {
    if (node->op->gradient == nullptr) continue;
    base::InlineVector<Tensor, 2> gradients;
    for (const NodeOutput& output : node->outputs)
      gradients.push_back(output.requires_grad ? make_feed(output.spec) : Tensor());
    for (const Tensor& result : apply_rule(*node, {gradients.data(), gradients.size()}))
      if (result.defined()) consider(result.value());
  }
  for (const NodePtr& node : scratch.nodes())
    for (const Value& input : node->inputs) consider(input);
  scratch.clear();
  return needed;
}

}  // namespace autodiff
}  // namespace bonfire
