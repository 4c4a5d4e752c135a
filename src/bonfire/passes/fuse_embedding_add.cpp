#include "bonfire/passes/fuse_embedding_add.h"

#include "bonfire/kernel/kernel.h"
#include "bonfire/passes/activation.h"

namespace bonfire::passes {

namespace {

class FuseEmbeddingAdd final : public Pass {
 public:
  std::string_view name() const override { return "fuse_embedding_add"; }

  void run(Graph& graph, const Options&) const override {
    const Op &gradient = find_op("embedding_gradient"), &added = find_op("embedding_gradient_add");
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      if (node->is_input() || !is_addition(*node) || !has_kernel(added, node->device())) continue;
      for (size_t i = 0; i < 2; ++i) {
        const GraphValue rows = node->inputs[i], other = before_rounding(node->inputs[1 - i], rows.spec());
        if (rows.node->op != &gradient || !graph.only_user(rows, node) || rows == other ||
            !(other.spec() == rows.spec()))
          continue;
        GraphNode* fused = graph.add_like(*rows.node, added, {rows.node->inputs[0], rows.node->inputs[1], other},
                                          rows.node->attributes, node);
        graph.replace({node, 0}, {fused, 0});
        graph.erase(node);
        break;
      }
    }
  }

 private:
  // What mixed precision has rounded, where that has the wanted type.
  static GraphValue before_rounding(const GraphValue& value, const TensorSpec& wanted) {
    const bool rounded = value.node->op == &find_op("cast") && value.node->inputs[0].spec() == wanted;
    return rounded ? value.node->inputs[0] : value;
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_embedding_add() { return std::make_unique<FuseEmbeddingAdd>(); }

}  // namespace bonfire::passes
