#include "bonfire/passes/fuse_add_act.h"

#include "bonfire/passes/activation.h"
#include "bonfire/passes/elementwise_merge.h"

namespace bonfire::passes {

namespace {

class FuseAddAct final : public Pass {
 public:
  std::string_view name() const override { return "fuse_add_act"; }

  void run(Graph& graph, const Options& options) const override {
    if (!options.fuse_elewise_add_act_ops) return;
    Uses uses(graph);
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      if (!is_activation(*node) || !is_addition(*node->inputs[0].node)) continue;
      if (can_merge(*node->inputs[0].node, *node, uses)) merge(graph, uses, node->inputs[0].node, node);
    }
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_add_act() { return std::make_unique<FuseAddAct>(); }

}  // namespace bonfire::passes
