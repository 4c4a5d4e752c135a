#include "bonfire/passes/fuse_bias_act.h"

#include "bonfire/passes/activation.h"

namespace bonfire::passes {

namespace {

// conv2d and matmul, what they become, and along which axis of the result a bias runs.
struct Family {
  const Op& plain;
  const Op& fused;
  int bias_axis;  // from the end: -1 the last, -3 channels of [N, C, H, W]
};

bool is_bias(const GraphValue& value, const TensorSpec& result, int axis) {
  const Shape& shape = value.spec().shape;
  int64_t extent = result.shape[axis];
  if (shape.count() != extent || !is_floating(value.spec().dtype)) return false;
  return shape.rank() >= -axis && shape[axis] == extent;
}

class FuseBiasAct final : public Pass {
 public:
  std::string_view name() const override { return "fuse_bias_act"; }

  void run(Graph& graph, const Options& options) const override {
    const Family families[] = {{find_op("conv2d"), find_op("conv2d_bias_act"), -3},
                               {find_op("matmul"), find_op("matmul_bias_act"), -1}};
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      for (const Family& family : families)
        if (node->op == &family.plain) fuse(graph, *node, family, options);
    }
  }

 private:
  static void fuse(Graph& graph, GraphNode& node, const Family& family, const Options& options) {
    GraphNode* last = &node;
    std::vector<GraphValue> inputs = node.inputs;
    bool has_bias = false;
    int activation = -1;
    if (GraphNode* user = only_user(graph, {&node, 0}); user != nullptr && is_addition(*user)) {
      const GraphValue& other = user->inputs[user->inputs[0].node == &node ? 1 : 0];
      if (other.node != &node && is_bias(other, node.outputs[0], family.bias_axis) &&
          user->outputs[0] == node.outputs[0]) {
        inputs.push_back(other);
        has_bias = true;
        last = user;
      }
    }
    const bool may_activate = !has_bias || options.fuse_elewise_add_act_ops;
    if (GraphNode* user = only_user(graph, {last, 0}); may_activate && user != nullptr && is_activation(*user)) {
      activation = user->op->elementwise_function;
      last = user;
    }
    if (last == &node) return;
    Attributes attributes = node.attributes;
    attributes.set({"has_bias", has_bias});
    attributes.set({"activation", activation});
    if (family.bias_axis == -3) attributes.set({"has_residual", 0});
    GraphNode* fused = graph.add_like(node, family.fused, std::move(inputs), std::move(attributes), last);
    graph.replace({last, 0}, {fused, 0});
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_bias_act() { return std::make_unique<FuseBiasAct>(); }

}  // namespace bonfire::passes
