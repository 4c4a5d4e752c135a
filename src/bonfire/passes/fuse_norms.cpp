#include "bonfire/passes/fuse_norms.h"

#include <algorithm>
#include <span>

namespace bonfire::passes {

namespace {

// Two ops and the one that does the work of both, with the results of the second. Its inputs are those of the second
// without the squares; `others` of them come before those that the squares are of.
struct Rule {
  const Op &squares, &by_squares, &both;
  size_t others;
};

class FuseNorms final : public Pass {
 public:
  std::string_view name() const override { return "fuse_norms"; }

  void run(Graph& graph, const Options&) const override {
    const Rule rules[] = {
        {find_op("update_squares"), find_op("optimizer_update_by_squares"), find_op("optimizer_update"), 0},
        {find_op("gradient_squares"), find_op("clip_gradients_by_squares"), find_op("clip_gradients"), 1}};
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      for (const Rule& rule : rules)
        if (node->op == &rule.by_squares) fuse(graph, rule, node);
    }
  }

 private:
  static void fuse(Graph& graph, const Rule& rule, GraphNode* node) {
    const auto from = std::find_if(node->inputs.begin(), node->inputs.end(),
                                   [&](const GraphValue& input) { return input.node->op == &rule.squares; });
    if (from == node->inputs.end() || !graph.only_user(*from, node)) return;
    GraphNode* squares = from->node;
    std::vector<GraphValue> inputs = node->inputs;
    inputs.erase(inputs.begin() + (from - node->inputs.begin()));
    if (!std::ranges::equal(squares->inputs, std::span(inputs).subspan(rule.others))) return;
    if (!(squares->attributes == node->attributes)) return;
    node->op = &rule.both;
    graph.set_inputs(node, std::move(inputs));
    graph.erase(squares);
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_norms() { return std::make_unique<FuseNorms>(); }

}  // namespace bonfire::passes
