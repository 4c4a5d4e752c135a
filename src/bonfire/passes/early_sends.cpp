#include "bonfire/passes/early_sends.h"

#include <map>
#include <unordered_map>

#include "bonfire/comm/messages.h"

namespace bonfire::passes {
namespace {

class EarlySends final : public Pass {
 public:
  std::string_view name() const override { return "early_sends"; }

  void run(Graph& graph, const Options&) const override {
    std::vector<GraphNode*> sends, order;
    std::unordered_map<const GraphNode*, size_t> places;  // in the order; of a send: the node that it stands after
    for (GraphNode& node : graph.nodes()) {
      places.emplace(&node, order.size());
      order.push_back(&node);
      if (node.op == &comm::send_op()) sends.push_back(&node);
    }
    std::map<std::pair<int64_t, int64_t>, size_t> last;  // of those sent so far to each rank: what it stands after
    for (GraphNode* send : sends) {
      size_t& to_same = last[{send->attributes.integer("axis"), send->attributes.integer("peer")}];
      const size_t after = std::max(to_same, places.at(send->inputs[0].node));
      to_same = after;
      if (GraphNode* before = first_op_after(order, after); before != nullptr && before != send)
        graph.move_before(send, before);
    }
  }

 private:
  // Sends are moved in order to one place each, so they stay in order in front of the first node that stays.
  static GraphNode* first_op_after(const std::vector<GraphNode*>& order, size_t place) {
    for (size_t i = place + 1; i < order.size(); ++i)
      if (!order[i]->is_input() && order[i]->op != &comm::send_op()) return order[i];
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Pass> early_sends() { return std::make_unique<EarlySends>(); }

}  // namespace bonfire::passes
