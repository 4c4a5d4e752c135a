#include "bonfire/passes/rebuild_cheap_values.h"

#include <algorithm>

#include "bonfire/kernel/device_costs.h"

namespace bonfire::passes {

namespace {

constexpr size_t kSmallest = 1 << 16;  // bytes: smaller values are not worth a kernel
constexpr size_t kLarge = 8 << 20;     // bytes: worth going over again although numbers of variables are read for it

class Rebuild {
 public:
  explicit Rebuild(Graph& graph) : graph_(graph) { number(); }

  void run() {
    std::vector<GraphNode*> cheap;
    for (GraphNode& node : graph_.nodes())
      if (!node.is_input() && node.op->has(Trait::cheap) && !node.op->has(Trait::random)) cheap.push_back(&node);
    for (GraphNode* node : cheap) consider(*node);
  }

 private:
  void number() {
    position_.clear();
    int next = 0;
    for (const GraphNode& node : graph_.nodes()) position_[&node] = next++;
  }

  int last_use(const GraphValue& value, const GraphNode& except) const {
    if (graph_.graph_uses(value) > 0) return static_cast<int>(position_.size());
    int last = -1;
    for (const GraphNode* user : graph_.users(value))
      if (user != &except) last = std::max(last, position_.at(user));
    return last;
  }

  // Of batch norm's activations, that is.
  static bool may_read_variables(const GraphNode& node) {
    return costs_of(node.device()).keeping_is_dear && node.outputs[0].bytes() >= kLarge;
  }

  // Everything that the node reads is there at `place` anyway, and only one of its inputs is as large as its result
  // (two would chain: rebuilding one block's output from the previous one's, and so on to the first).
  bool inputs_are_kept(const GraphNode& node, int place) const {
    int large = 0;
    for (const GraphValue& input : node.inputs) {
      bool is_large = input.spec().bytes() >= kSmallest;
      large += is_large ? 1 : 0;
      if (input.node->leaf == LeafKind::variable && (is_large || !may_read_variables(node))) return false;
      if (is_large && !input.node->is_input() && last_use(input, node) < place) return false;
    }
    return large <= 1;
  }

  void consider(GraphNode& node) {
    GraphValue value{&node, 0};
    if (node.phase != Phase::forward || graph_.graph_uses(value) > 0) return;
    if (node.outputs.size() != 1 || node.outputs[0].bytes() < kSmallest) return;
    bool early = false;          // used in the forward pass as well: else it is only computed late
    GraphNode* first = nullptr;  // of those that use it later
    for (GraphNode* user : graph_.users(value)) {
      if (user->phase == node.phase) {
        early = true;
      } else if (first == nullptr || position_.at(user) < position_.at(first)) {
        first = user;
      }
    }
    if (early && first != nullptr && inputs_are_kept(node, position_.at(first))) rebuild(node, first);
  }

  // For its users after the forward pass, of which `first` is the first.
  void rebuild(GraphNode& node, GraphNode* first) {
    const std::vector<GraphNode*> users = graph_.users({&node, 0});
    GraphNode* copy = graph_.add_like(node, *node.op, node.inputs, node.attributes, first);
    copy->phase = first->phase;
    copy->recomputed = true;
    for (GraphNode* user : users)
      for (size_t i = 0; i < user->inputs.size() && user->phase != node.phase; ++i)
        if (user->inputs[i] == GraphValue{&node, 0}) graph_.set_input(user, i, {copy, 0});
    number();
  }

  Graph& graph_;
  std::unordered_map<const GraphNode*, int> position_;
};

class RebuildCheapValues final : public Pass {
 public:
  std::string_view name() const override { return "rebuild_cheap_values"; }
  void run(Graph& graph, const Options& options) const override {
    if (options.rebuild_cheap_values) Rebuild(graph).run();
  }
};

}  // namespace

std::unique_ptr<Pass> rebuild_cheap_values() { return std::make_unique<RebuildCheapValues>(); }

}  // namespace bonfire::passes
