#include "bonfire/passes/fuse_bn_act.h"

#include "bonfire/passes/activation.h"

namespace bonfire::passes {

namespace {

// What of a fused forward node its gradient needs.
struct Fused {
  GraphNode* node;  // batch_norm_act
  int activation;
  bool has_residual;
};

class FuseBnAct final : public Pass {
 public:
  std::string_view name() const override { return "fuse_bn_act"; }

  void run(Graph& graph, const Options& options) const override {
    if (!options.fuse_bn_act_ops) return;
    const Op& normalize = find_op("batch_norm_normalize");
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      if (node->op == &normalize) fuse_forward(graph, *node);
    }
  }

 private:
  // y = activation(normalise(x) [+ residual])
  static void fuse_forward(Graph& graph, GraphNode& node) {
    GraphNode* last = only_user(graph, {&node, 0});
    if (last == nullptr) return;
    std::vector<GraphValue> inputs = node.inputs;  // x, mean, variance, weight, bias
    bool has_residual = false;
    if (is_addition(*last)) {
      const GraphValue& other = last->inputs[last->inputs[0].node == &node ? 1 : 0];
      if (other.node == &node || !(other.spec() == node.outputs[0]) || !(last->outputs[0] == node.outputs[0])) return;
      inputs.push_back(other);
      has_residual = true;
      last = only_user(graph, {last, 0});
    }
    if (last == nullptr || !is_activation(*last) || !(last->outputs[0] == node.outputs[0])) return;
    auto function = static_cast<ElementwiseFunction>(last->op->elementwise_function);
    Attributes attributes{{"eps", node.attributes.number("eps")},
                          {"activation", static_cast<int>(function)},
                          {"has_residual", has_residual}};
    GraphNode* fused = graph.add_like(node, find_op("batch_norm_act"), std::move(inputs), std::move(attributes), last);
    graph.replace({last, 0}, {fused, 0});
    // The mask of these can be taken from y; the gradients of others are in terms of what is fused away.
    if (function == ElementwiseFunction::relu || function == ElementwiseFunction::tanh ||
        function == ElementwiseFunction::sigmoid)
      fuse_backward(graph, {fused, static_cast<int>(function), has_residual});
  }

  static bool is_gradient_of(const GraphNode& node, const Fused& forward) {
    if (node.is_input() || node.op->elementwise_function < 0 || node.inputs.size() != 2) return false;
    if (!(node.inputs[1] == GraphValue{forward.node, 0})) return false;
    switch (static_cast<ElementwiseFunction>(node.op->elementwise_function)) {
      case ElementwiseFunction::relu_gradient: return forward.activation == static_cast<int>(ElementwiseFunction::relu);
      case ElementwiseFunction::tanh_gradient: return forward.activation == static_cast<int>(ElementwiseFunction::tanh);
      case ElementwiseFunction::sigmoid_gradient:
        return forward.activation == static_cast<int>(ElementwiseFunction::sigmoid);
      default: return false;
    }
  }

  // dz = activation'(dy, y) → sums(dz) → apply(dz) becomes sums(dy) → apply(dy), with dz rebuilt inside both.
  static void fuse_backward(Graph& graph, const Fused& forward) {
    GraphNode *gradient = nullptr, *sums = nullptr, *apply = nullptr;
    for (GraphNode* user : graph.users({forward.node, 0}))
      if (is_gradient_of(*user, forward)) gradient = user;
    if (gradient == nullptr || !(gradient->outputs[0] == gradient->inputs[0].spec())) return;
    int others = graph.graph_uses({gradient, 0});
    for (GraphNode* user : graph.users({gradient, 0})) {
      if (user->op == &find_op("batch_norm_gradient_sums")) {
        sums = user;
      } else if (user->op == &find_op("batch_norm_gradient_apply")) {
        apply = user;
      } else {
        ++others;
      }
    }
    if (sums == nullptr || apply == nullptr || (others > 0 && !forward.has_residual)) return;
    // Another x is a copy that recompute has made, so that this one need not be kept.
    if (!(sums->inputs[1] == forward.node->inputs[0])) return;
    // With an all-reduce between, apply cannot come ahead of it: whoever needs dz before keeps it as it is.
    if (apply->inputs[5].node != sums && is_used_before(graph, *gradient, *sums, *apply)) return;
    replace_backward(graph, forward, *gradient, *sums, *apply);
  }

  // By anyone but `sums`.
  static bool is_used_before(const Graph& graph, const GraphNode& value, const GraphNode& sums,
                             const GraphNode& place) {
    for (const GraphNode& node : graph.nodes()) {
      if (&node == &place) return false;
      if (&node == &sums) continue;
      for (const GraphValue& input : node.inputs)
        if (input.node == &value) return true;
    }
    return false;
  }

  static void replace_backward(Graph& graph, const Fused& forward, GraphNode& gradient, GraphNode& sums,
                               GraphNode& apply) {
    const std::vector<GraphValue>& in = forward.node->inputs;
    GraphValue y{forward.node, 0}, dy = gradient.inputs[0];
    Attributes attributes = forward.node->attributes;
    std::vector<GraphValue> inputs{dy, in[0], in[1], in[2], in[3], in[4]};
    if (forward.has_residual) inputs.push_back(y);
    GraphNode* new_sums =
        graph.add_like(sums, find_op("batch_norm_act_gradient_sums"), std::move(inputs), attributes, &sums);
    attributes.set({"count", apply.attributes.integer("count")});
    inputs = {dy,
              in[0],
              in[1],
              in[2],
              in[3],
              in[4],
              sums_or(apply.inputs[5], sums, *new_sums),
              sums_or(apply.inputs[6], sums, *new_sums)};
    if (forward.has_residual) inputs.push_back(y);
    GraphNode* new_apply =
        graph.add_like(apply, find_op("batch_norm_act_gradient_apply"), std::move(inputs), attributes, &apply);
    for (int i = 0; i < 2; ++i) graph.replace({&sums, i}, {new_sums, i});
    graph.replace({&apply, 0}, {new_apply, 0});
    graph.erase(&apply);
    graph.erase(&sums);
    if (!forward.has_residual) return;
    // Whoever used dz besides now takes the residual's gradient; that comes later in the order, so users must too.
    graph.replace({&gradient, 0}, {new_apply, 1});
    move_before_users(graph, *new_apply, *new_sums);
  }

  // The sums may have gone through an all-reduce on their way to apply.
  static GraphValue sums_or(const GraphValue& value, const GraphNode& old_sums, GraphNode& new_sums) {
    return value.node == &old_sums ? GraphValue{&new_sums, value.index} : value;
  }

  // Brings apply (and what it needs) ahead of the first user of the residual's gradient.
  static void move_before_users(Graph& graph, GraphNode& apply, GraphNode& sums) {
    for (GraphNode& node : graph.nodes()) {
      if (&node == &apply) return;
      for (const GraphValue& input : node.inputs) {
        if (input.node != &apply) continue;
        graph.move_before(&sums, &node);
        graph.move_before(&apply, &node);
        return;
      }
    }
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_bn_act() { return std::make_unique<FuseBnAct>(); }

}  // namespace bonfire::passes
