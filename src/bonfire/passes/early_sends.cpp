#include "bonfire/passes/early_sends.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "bonfire/comm/messages.h"

namespace bonfire::passes {
namespace {

using Receives = std::set<const GraphNode*>;

class Order {
 public:
  explicit Order(Graph& graph) : graph_(graph) {
    for (GraphNode& node : graph.nodes()) {
      nodes_.push_back(&node);
      Receives& waits = waits_for_[&node];
      for (const GraphValue& input : node.inputs) {
        const Receives& earlier = waits_for_.at(input.node);
        waits.insert(earlier.begin(), earlier.end());
        if (input.node->op == &comm::receive_op()) waits.insert(input.node);
      }
    }
  }

  void hoist(GraphNode* send) {
    const std::unordered_set<const GraphNode*> needed = needed_by(*send);
    const auto here = std::find(nodes_.begin(), nodes_.end(), send) - nodes_.begin();
    auto made = std::ptrdiff_t{0}, stays = std::ptrdiff_t{0};  // the operand; the last node that it must not pass
    for (auto i = std::ptrdiff_t{0}; i < here; ++i) {
      const GraphNode* node = nodes_[static_cast<size_t>(i)];
      if (node == send->inputs[0].node) made = i;
      if (node->is_input() || same_way(*node, *send) || (needed.contains(node) && node->op->has(Trait::collective)))
        stays = i;
    }
    std::ptrdiff_t target = std::max(stays, made) + 1;
    for (std::ptrdiff_t i = stays + 1; i < target; ++i)
      if (waits_for_another(*nodes_[static_cast<size_t>(i)], *send)) target = i;
    // What it needs of the nodes that it passes goes with it.
    std::vector<GraphNode*> moved, passed;
    for (std::ptrdiff_t i = target; i < here; ++i) {
      GraphNode* node = nodes_[static_cast<size_t>(i)];
      (needed.contains(node) ? moved : passed).push_back(node);
    }
    if (passed.empty()) return;
    moved.push_back(send);
    for (GraphNode* node : moved) graph_.move_before(node, passed.front());
    moved.insert(moved.end(), passed.begin(), passed.end());
    std::copy(moved.begin(), moved.end(), nodes_.begin() + target);
  }

 private:
  static bool same_way(const GraphNode& node, const GraphNode& send) {
    return node.op == send.op && node.attributes.integer("axis") == send.attributes.integer("axis") &&
           node.attributes.integer("peer") == send.attributes.integer("peer");
  }

  bool waits_for_another(const GraphNode& node, const GraphNode& send) const {
    const Receives &waits = waits_for_.at(&node), &own = waits_for_.at(&send);
    return !std::includes(own.begin(), own.end(), waits.begin(), waits.end());
  }

  static std::unordered_set<const GraphNode*> needed_by(const GraphNode& send) {
    std::unordered_set<const GraphNode*> needed;
    std::vector<const GraphNode*> left{&send};
    while (!left.empty()) {
      const GraphNode* node = left.back();
      left.pop_back();
      for (const GraphValue& input : node->inputs)
        if (needed.insert(input.node).second) left.push_back(input.node);
    }
    return needed;
  }

  Graph& graph_;
  std::vector<GraphNode*> nodes_;
  std::unordered_map<const GraphNode*, Receives> waits_for_;  // directly or by what they read
};

class EarlySends final : public Pass {
 public:
  std::string_view name() const override { return "early_sends"; }

  void run(Graph& graph, const Options&) const override {
    std::vector<GraphNode*> sends;
    for (GraphNode& node : graph.nodes())
      if (node.op == &comm::send_op()) sends.push_back(&node);
    if (sends.empty()) return;
    Order order(graph);
    for (GraphNode* send : sends) order.hoist(send);
  }
};

}  // namespace

std::unique_ptr<Pass> early_sends() { return std::make_unique<EarlySends>(); }

}  // namespace bonfire::passes
