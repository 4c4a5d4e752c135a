#include "bonfire/passes/fuse_linear_cross_entropy.h"

#include <unordered_set>

#include "bonfire/kernel/kernel.h"
#include "bonfire/passes/activation.h"

namespace bonfire::passes {

namespace {

// Smaller logits are not worth it: they fit into the cache, and plain products may choose among more kernels.
constexpr int64_t kFewestClasses = 4096;
constexpr int64_t kFewestLogits = int64_t{1} << 22;

bool is(const GraphNode& node, std::string_view op) { return !node.is_input() && node.name() == op; }

// A change of type or shape that keeps every element.
bool is_same_values(const GraphNode& node) { return is(node, "cast") || is(node, "reshape"); }

// What becomes one node. Forward: product (+ bias) → casts and reshapes → loss. Backward: the loss's gradient → casts
// and reshapes → the gradients.
struct Match {
  GraphNode *loss = nullptr, *loss_gradient = nullptr;
  GraphValue x, weight, bias;
  GraphNode *dx = nullptr, *dweight = nullptr, *dbias = nullptr;
  std::unordered_set<const GraphNode*> inside;  // forward nodes that go away
};

class Fusion {
 public:
  explicit Fusion(Graph& graph) : graph_(graph) {}

  bool fuse(GraphNode& loss) {
    Match match;
    match.loss = &loss;
    if (!is_large(loss) || !has_kernel(fused_, loss.device()) || !find_linear(match) || !find_backward(match) ||
        !forward_is_private(match))
      return false;
    std::vector<GraphNode*> before = needed_by(match.loss_gradient->inputs[0], match.loss);
    if (depends_on_loss_) return false;
    for (GraphNode* node : before) graph_.move_before(node, match.loss);
    replace(match);
    return true;
  }

 private:
  static bool is_large(const GraphNode& loss) {
    const Shape& logits = loss.inputs[0].spec().shape;
    return logits.rank() == 2 && logits[1] >= kFewestClasses && logits.count() >= kFewestLogits &&
           loss.outputs[0].shape.rank() == 0;
  }

  static bool is_product(const GraphNode& node, bool transpose_a, bool transpose_b) {
    return is(node, "matmul") && node.inputs[0].spec().shape.rank() == 2 && node.inputs[1].spec().shape.rank() == 2 &&
           node.attributes.flag("transpose_a") == transpose_a && node.attributes.flag("transpose_b") == transpose_b;
  }

  static bool is_sum_of_rows(const GraphNode& node) {
    return is(node, "sum") && node.inputs[0].spec().shape.rank() == 2 && node.attributes.ints("axes") == Shape{0} &&
           !node.attributes.flag("keepdim");
  }

  static bool find_linear(Match& match) {
    GraphNode* node = match.loss->inputs[0].node;
    const Shape& logits = match.loss->inputs[0].spec().shape;
    while (is_same_values(*node)) {
      match.inside.insert(node);
      node = node->inputs[0].node;
    }
    if (is_addition(*node)) {
      match.inside.insert(node);
      const int product = is_product(*node->inputs[0].node, false, true) ? 0 : 1;
      match.bias = node->inputs[1 - product];
      if (!(match.bias.spec().shape == Shape{logits[1]})) return false;
      node = node->inputs[product].node;
    }
    if (!is_product(*node, false, true)) return false;
    match.inside.insert(node);
    match.x = node->inputs[0];
    match.weight = node->inputs[1];
    return match.weight.spec().shape[0] == logits[1] && match.x.spec().shape[0] == logits[0];
  }

  bool find_backward(Match& match) const {
    for (GraphNode* user : graph_.users({match.loss, 1}))
      if (is(*user, "cross_entropy_gradient")) match.loss_gradient = user;
    if (match.loss_gradient == nullptr || !(match.loss_gradient->inputs[1] == match.loss->inputs[0]) ||
        !graph_.only_user({match.loss, 1}, match.loss_gradient) ||
        !graph_.only_user({match.loss, 2}, match.loss_gradient))
      return false;
    return find_gradients(match, {match.loss_gradient, 0}) && match.dx != nullptr && match.dweight != nullptr &&
           (match.dbias != nullptr) == static_cast<bool>(match.bias);
  }

  // The value, or a copy of it that recompute has made for a gradient.
  static bool is_same(const GraphValue& value, const GraphValue& original) {
    const GraphNode &node = *value.node, &first = *original.node;
    return value == original || (node.recomputed && node.op == first.op && node.number == first.number &&
                                 node.number >= 0 && value.index == original.index);
  }

  // Every use of the gradient of the logits is one of the three.
  bool find_gradients(Match& match, GraphValue gradient) const {
    if (graph_.graph_uses(gradient) > 0) return false;
    for (GraphNode* user : graph_.users(gradient)) {
      if (is_same_values(*user)) {
        if (!find_gradients(match, {user, 0})) return false;
      } else if (is_product(*user, false, false) && user->inputs[0] == gradient &&
                 is_same(user->inputs[1], match.weight)) {
        match.dx = user;
      } else if (is_product(*user, true, false) && user->inputs[0] == gradient && is_same(user->inputs[1], match.x)) {
        match.dweight = user;
      } else if (match.bias && is_sum_of_rows(*user)) {
        match.dbias = user;
      } else {
        return false;
      }
    }
    return true;
  }

  bool forward_is_private(const Match& match) const {
    for (const GraphNode* node : match.inside) {
      GraphValue value{const_cast<GraphNode*>(node), 0};
      if (graph_.graph_uses(value) > 0) return false;
      for (const GraphNode* user : graph_.users(value))
        if (!match.inside.contains(user) && user != match.loss && user != match.loss_gradient) return false;
    }
    return true;
  }

  // Nodes after `place` that the value comes from, inputs first.
  std::vector<GraphNode*> needed_by(const GraphValue& value, const GraphNode* place) {
    std::unordered_set<const GraphNode*> earlier;
    for (const GraphNode& node : graph_.nodes()) {
      if (&node == place) break;
      earlier.insert(&node);
    }
    std::vector<GraphNode*> order;
    depends_on_loss_ = false;
    collect(value.node, place, earlier, order);
    return order;
  }

  void collect(GraphNode* node, const GraphNode* place, std::unordered_set<const GraphNode*>& done,
               std::vector<GraphNode*>& order) {
    depends_on_loss_ |= node == place;
    if (depends_on_loss_ || !done.insert(node).second) return;
    for (const GraphValue& input : node->inputs) collect(input.node, place, done, order);
    order.push_back(node);
  }

  void replace(const Match& match) {
    std::vector<GraphValue> inputs{match.x, match.weight};
    if (match.bias) inputs.push_back(match.bias);
    inputs.push_back(match.loss->inputs[1]);
    inputs.push_back(as(match.loss_gradient->inputs[0], match.loss->outputs[0].dtype, match.loss));
    Attributes attributes = match.loss->attributes;
    attributes.set({"has_bias", static_cast<bool>(match.bias)});
    GraphNode* fused = graph_.add(fused_, std::move(inputs), std::move(attributes), match.loss);
    fused->path = match.loss->path.empty() ? match.weight.node->path : match.loss->path;
    graph_.replace({match.loss, 0}, as({fused, 0}, match.loss->outputs[0].dtype, match.loss));
    GraphNode* old[] = {match.dx, match.dweight, match.dbias};
    for (int i = 0; i < 3; ++i)
      if (old[i] != nullptr) replace_gradient({fused, i + 1}, *old[i]);
  }

  // Casts of the old gradient to the new one's type go away.
  void replace_gradient(GraphValue gradient, GraphNode& old) {
    const std::vector<GraphNode*> users = graph_.users({&old, 0});
    for (GraphNode* user : users)
      if (is(*user, "cast") && user->outputs[0] == gradient.spec()) graph_.replace({user, 0}, gradient);
    graph_.replace({&old, 0}, as(gradient, old.outputs[0].dtype, &old));
  }

  GraphValue as(const GraphValue& value, DType dtype, GraphNode* before) {
    if (value.spec().dtype == dtype) return value;
    return {graph_.add(find_op("cast"), {value}, {{"dtype", dtype}}, before), 0};
  }

  Graph& graph_;
  const Op& fused_ = find_op("linear_cross_entropy");
  bool depends_on_loss_ = false;
};

class FuseLinearCrossEntropy final : public Pass {
 public:
  std::string_view name() const override { return "fuse_linear_cross_entropy"; }

  void run(Graph& graph, const Options&) const override {
    const Op& cross_entropy = find_op("cross_entropy");
    std::vector<GraphNode*> losses;
    for (GraphNode& node : graph.nodes())
      if (node.op == &cross_entropy) losses.push_back(&node);
    for (GraphNode* loss : losses) Fusion(graph).fuse(*loss);
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_linear_cross_entropy() { return std::make_unique<FuseLinearCrossEntropy>(); }

}  // namespace bonfire::passes
