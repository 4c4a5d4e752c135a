#include "bonfire/passes/dead_code.h"

#include <unordered_set>

namespace bonfire::passes {

namespace {

class DeadCode final : public Pass {
 public:
  std::string_view name() const override { return "dead_code"; }

  void run(Graph& graph, const Options&) const override {
    std::unordered_set<const GraphNode*> used;
    for (const GraphValue& output : graph.outputs) used.insert(output.node);
    for (const GraphAssignment& assignment : graph.assignments) {
      used.insert(assignment.value.node);
      used.insert(assignment.variable);
    }
    std::vector<GraphNode*> dead;
    for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
      if (!used.contains(&*node) && !(node->op != nullptr && node->op->has(Trait::stateful))) {
        dead.push_back(&*node);
        continue;
      }
      for (const GraphValue& input : node->inputs) used.insert(input.node);
    }
    for (GraphNode* node : dead) graph.erase(node);
  }
};

}  // namespace

std::unique_ptr<Pass> dead_code() { return std::make_unique<DeadCode>(); }

}  // namespace bonfire::passes
