#include "bonfire/passes/common_subexpressions.h"

#include <unordered_map>

namespace bonfire::passes {

namespace {

constexpr uint32_t kNeverMerged = Trait::random | Trait::stateful | Trait::collective;

base::Hash128 hash_of(const GraphNode& node) {
  base::Hash128 hash;
  hash.mix(static_cast<uint64_t>(node.op->id));
  node.attributes.mix_into(hash);
  for (const GraphValue& input : node.inputs) {
    hash.mix(reinterpret_cast<uintptr_t>(input.node));
    hash.mix(static_cast<uint64_t>(input.index));
  }
  return hash;
}

bool same(const GraphNode& a, const GraphNode& b) {
  return a.op == b.op && a.inputs == b.inputs && a.attributes == b.attributes && a.outputs == b.outputs;
}

class CommonSubexpressions final : public Pass {
 public:
  std::string_view name() const override { return "common_subexpressions"; }

  void run(Graph& graph, const Options&) const override {
    std::unordered_map<base::Hash128, GraphNode*> first;
    std::vector<GraphNode*> merged;
    for (GraphNode& node : graph.nodes()) {
      if (node.is_input() || node.op->has(kNeverMerged) || node.recomputed) continue;
      auto [slot, fresh] = first.emplace(hash_of(node), &node);
      if (fresh || !same(*slot->second, node)) continue;
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) graph.replace({&node, i}, {slot->second, i});
      merged.push_back(&node);
    }
    for (GraphNode* node : merged) graph.erase(node);
  }
};

}  // namespace

std::unique_ptr<Pass> common_subexpressions() { return std::make_unique<CommonSubexpressions>(); }

}  // namespace bonfire::passes
