#include "bonfire/passes/gather_parameters.h"

#include <algorithm>
#include <unordered_map>

#include "bonfire/comm/flat_parts.h"

namespace bonfire::passes {
namespace {

bool is_gather(const GraphNode& node) {
  return node.op == &comm::gather_flat_op() && node.attributes.flag("parameter");
}

// What is left of a parameter once it is cast or seen in another shape.
bool keeps_elements(const GraphNode& node) {
  static const Op &cast = find_op("cast"), &permute = find_op("permute");
  return node.inputs.size() == 1 && node.outputs.size() == 1 &&
         (node.op == &cast || node.op == &permute || node.op->has(Trait::view));
}

using GatherNodes = std::vector<GraphNode*>;

// Gathered together.
struct GatherGroup {
  GatherNodes gathers;
  GraphNode* first_reader = nullptr;
  size_t bytes = 0;
};

class GatherWalk {
 public:
  explicit GatherWalk(Graph& graph) : graph_(graph) {}

  void run() {
    GatherNodes gathers = find();
    if (gathers.empty()) return;
    for (const GraphNode* gather : gathers) total_ += gather->outputs[0].bytes();
    std::vector<GatherGroup> first = groups_of(gathers);
    GatherNodes again;
    for (size_t i = 0; i + 1 < first.size(); ++i)
      for (GraphNode* gather : first[i].gathers)
        if (GraphNode* copy = gather_again(*gather)) again.push_back(copy);
    put(groups_of(gathers));
    put(groups_of(again));
  }

 private:
  // Those that nobody reads go. One whose parts are made in the step stays where it is.
  GatherNodes find() {
    GatherNodes found, all;
    for (GraphNode& node : graph_.nodes())
      if (!node.is_input() && is_gather(node)) all.push_back(&node);
    for (GraphNode* node : all) {
      const bool is_read = !graph_.users({node, 0}).empty();
      if (!is_read && graph_.graph_uses({node, 0}) == 0)
        graph_.erase(node);
      else if (is_read && node->inputs[0].node->is_input())
        found.push_back(node);
    }
    return found;
  }

  std::unordered_map<const GraphNode*, int> places() const {
    std::unordered_map<const GraphNode*, int> places;
    for (const GraphNode& node : graph_.nodes()) places.emplace(&node, static_cast<int>(places.size()));
    return places;
  }

  // In the order in which they are used.
  std::vector<GatherGroup> groups_of(const GatherNodes& gathers) const {
    constexpr size_t kLeast = 256 << 10;
    const size_t most = std::max(total_ / 16, kLeast);  // bytes of a group
    const std::unordered_map<const GraphNode*, int> place = places();
    std::vector<std::pair<GraphNode*, GraphNode*>> used;  // a gather, and who reads it first
    for (GraphNode* gather : gathers)
      used.emplace_back(gather, *std::ranges::min_element(graph_.users({gather, 0}), {},
                                                          [&](const GraphNode* user) { return place.at(user); }));
    std::ranges::stable_sort(used, {}, [&](const auto& one) { return place.at(one.second); });
    std::vector<GatherGroup> groups;
    for (const auto& [gather, reader] : used) {
      const size_t bytes = gather->outputs[0].bytes();
      const bool joins =
          !groups.empty() && groups.back().bytes + bytes <= most && are_alike(*groups.back().gathers.front(), *gather);
      if (!joins) groups.push_back({.gathers = {}, .first_reader = reader});
      groups.back().gathers.push_back(gather);
      groups.back().bytes += bytes;
    }
    return groups;
  }

  static bool are_alike(const GraphNode& a, const GraphNode& b) {
    return a.outputs[0].dtype == b.outputs[0].dtype && a.device() == b.device();
  }

  // For those of its readers that come after the forward pass. Null: there are none.
  GraphNode* gather_again(GraphNode& gather) {
    struct Read {
      GraphNode* reader;
      size_t slot;
      GraphValue value;
    };
    std::vector<Read> reads;
    GatherNodes derived = {&gather};  // of the forward pass; whoever makes comes before who reads
    for (size_t i = 0; i < derived.size(); ++i)
      for (GraphNode* user : graph_.users({derived[i], 0})) {
        if (user->phase == Phase::forward) {
          if (keeps_elements(*user) && std::ranges::find(derived, user) == derived.end()) derived.push_back(user);
          continue;
        }
        for (size_t slot = 0; slot < user->inputs.size(); ++slot)
          if (user->inputs[slot] == GraphValue{derived[i], 0} &&
              std::ranges::none_of(reads, [&](const Read& one) { return one.reader == user && one.slot == slot; }))
            reads.push_back({user, slot, {derived[i], 0}});
      }
    if (reads.empty()) return nullptr;
    const std::unordered_map<const GraphNode*, int> place = places();
    GraphNode* before =
        std::ranges::min_element(reads, {}, [&](const Read& one) { return place.at(one.reader); })->reader;
    std::unordered_map<const GraphNode*, GraphNode*> copies;
    for (GraphNode* node : derived) {
      const bool is_needed =
          node == &gather || std::ranges::any_of(reads, [&](const Read& one) { return leads_to(*node, one.value); });
      if (!is_needed) continue;
      const GraphValue from = node->inputs[0];
      const auto copied = copies.find(from.node);
      const GraphValue input = copied == copies.end() ? from : GraphValue{copied->second, from.index};
      GraphNode* copy = graph_.add_like(*node, *node->op, {input}, node->attributes, before);
      copy->phase = Phase::backward;
      copy->recomputed = true;  // never merged with the original
      copies.emplace(node, copy);
    }
    for (const auto& [reader, slot, value] : reads) graph_.set_input(reader, slot, {copies.at(value.node), 0});
    return copies.at(&gather);
  }

  // Whether the value is made of what the node makes, by way of what keeps its elements.
  static bool leads_to(const GraphNode& node, GraphValue value) {
    for (const GraphNode* at = value.node; !at->is_input(); at = at->inputs[0].node) {
      if (at == &node) return true;
      if (is_gather(*at)) return false;
    }
    return false;
  }

  void put(const std::vector<GatherGroup>& groups) {
    GraphNode* before = nullptr;  // where the group before this one is used first
    for (const GatherGroup& group : groups) {
      merge(group, before != nullptr ? before : group.first_reader);
      before = group.first_reader;
    }
  }

  void merge(const GatherGroup& group, GraphNode* before) {
    const GraphNode& first = *group.gathers.front();
    std::vector<GraphValue> parts;
    std::vector<int64_t> names, shapes;
    for (const GraphNode* gather : group.gathers) {
      parts.push_back(gather->inputs[0]);
      for (int64_t name : gather->attributes.list("names")) names.push_back(name);
      for (int64_t word : gather->attributes.list("shapes")) shapes.push_back(word);
    }
    Attributes attributes = first.attributes;
    attributes.set({"names", std::span<const int64_t>(names)});
    attributes.set({"shapes", std::span<const int64_t>(shapes)});
    GraphNode* merged = graph_.add_like(first, *first.op, std::move(parts), attributes, before);
    int output = 0;
    for (GraphNode* gather : group.gathers) {
      graph_.replace({gather, 0}, {merged, output++});
      graph_.erase(gather);
    }
  }

  Graph& graph_;
  size_t total_ = 0;  // bytes of all that are gathered
};

class GatherParameters final : public Pass {
 public:
  std::string_view name() const override { return "gather_parameters"; }
  void run(Graph& graph, const Options&) const override { GatherWalk(graph).run(); }
};

}  // namespace

std::unique_ptr<Pass> gather_parameters() { return std::make_unique<GatherParameters>(); }

}  // namespace bonfire::passes
