#include "bonfire/passes/fuse_elementwise.h"

#include "bonfire/passes/elementwise_merge.h"

namespace bonfire::passes {

namespace {

class FuseElementwise final : public Pass {
 public:
  std::string_view name() const override { return "fuse_elementwise"; }

  void run(Graph& graph, const Options& options) const override {
    if (!options.fuse_elementwise) return;
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      while (node != nullptr) node = fuse_into(graph, node, options);
    }
  }

 private:
  // Merges one producer into the node; returns the merged node, or null when there is nothing to merge.
  static GraphNode* fuse_into(Graph& graph, GraphNode* node, const Options& options) {
    if (node->is_input() || !node->op->has(Trait::elementwise)) return nullptr;
    for (const GraphValue& input : node->inputs) {
      if (!can_merge(*input.node, *node, graph)) continue;
      if (!options.fuse_elewise_add_act_ops && joins_add_and_activation(*input.node, *node)) continue;
      return merge(graph, input.node, node);
    }
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_elementwise() { return std::make_unique<FuseElementwise>(); }

}  // namespace bonfire::passes
