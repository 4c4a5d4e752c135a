#include "bonfire/passes/before_pool_gradient.h"

#include <algorithm>

#include "bonfire/passes/activation.h"

namespace bonfire::passes {

namespace {

class BeforePoolGradient final : public Pass {
 public:
  std::string_view name() const override { return "before_pool_gradient"; }

  void run(Graph& graph, const Options&) const override {
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      if (node->is_input() || node->inputs.empty() || node->inputs[0].node->op != &find_op("max_pool2d_gradient"))
        continue;
      if (masks_maxima(*node, graph)) {
        mask_first(graph, *node);
      } else if (sums_pixels(*node)) {
        graph.set_input(node, 0, node->inputs[0].node->inputs[0]);
      }
    }
  }

 private:
  // relu_gradient(max_pool2d_gradient(dy, x, y), x)
  static bool masks_maxima(const GraphNode& node, const Graph& graph) {
    const GraphNode& pool = *node.inputs[0].node;
    return node.op->elementwise_function == static_cast<int>(ElementwiseFunction::relu_gradient) &&
           node.inputs[1] == pool.inputs[1] && node.outputs[0] == pool.outputs[0] &&
           graph.only_user({node.inputs[0].node, 0}, &node);
  }

  static void mask_first(Graph& graph, GraphNode& mask) {
    GraphNode& pool = *mask.inputs[0].node;
    GraphNode* first = graph.add_like(mask, *mask.op, {pool.inputs[0], pool.inputs[2]}, mask.attributes, &pool);
    GraphNode* last =
        graph.add_like(pool, *pool.op, {{first, 0}, pool.inputs[1], pool.inputs[2]}, pool.attributes, &pool);
    graph.replace({&mask, 0}, {last, 0});
    graph.erase(&mask);
    graph.erase(&pool);
  }

  static bool sums_pixels(const GraphNode& node) {
    if (node.op != &find_op("sum") && node.op != &find_op("sum_as_f32")) return false;
    const Shape& axes = node.attributes.ints("axes");
    auto sums = [&](int64_t axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); };
    return sums(2) && sums(3);
  }
};

}  // namespace

std::unique_ptr<Pass> before_pool_gradient() { return std::make_unique<BeforePoolGradient>(); }

}  // namespace bonfire::passes
