#include "bonfire/passes/fuse_elementwise.h"

#include "bonfire/passes/elementwise_merge.h"

namespace bonfire::passes {

namespace {

class FuseElementwise final : public Pass {
 public:
  std::string_view name() const override { return "fuse_elementwise"; }

  void run(Graph& graph, const Options& options) const override {
    if (!options.fuse_elementwise) return;
    while (fuse_once(graph)) {
    }
  }

 private:
  // One sweep; merging invalidates the table of uses only for values that disappear, so a sweep can go on.
  static bool fuse_once(Graph& graph) {
    Uses uses(graph);
    bool any = false;
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      if (node->is_input() || !node->op->has(Trait::elementwise)) continue;
      for (const GraphValue& input : node->inputs) {
        if (!can_merge(*input.node, *node, uses)) continue;
        merge(graph, input.node, node);
        any = true;
        uses = Uses(graph);
        break;
      }
    }
    return any;
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_elementwise() { return std::make_unique<FuseElementwise>(); }

}  // namespace bonfire::passes
