#include "bonfire/runtime/layout.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::runtime {

namespace {

OutputSpecs infer_reorder(const InferContext& context) { return {context.input(0)}; }

// Moves elements from one layout to another: attributes from_order, from_block, to_order, to_block.
const Op& reorder_op = register_op({.name = "reorder", .infer = infer_reorder});

class Chooser {
 public:
  Chooser(Graph& graph, std::span<const LeafLayout> leaves) : graph_(graph), uses_(graph) {
    for (const LeafLayout& leaf : leaves) {
      choices_.leaf_layouts.push_back(leaf.layout);
      choices_.leaf_layout_used.push_back(false);
      fixed_.push_back(leaf.fixed);
    }
  }

  Choices run() {
    for (auto node = graph_.nodes().begin(); node != graph_.nodes().end(); ++node) {
      if (node->is_input()) {
        layouts_[{&*node, 0}] = is_variable(*node) ? choices_.leaf_layouts[node->leaf_position] : Layout{};
      } else if (node->op->has(Trait::view)) {
        choose_alias(*node);
      } else {
        choose(*node);
      }
    }
    for (GraphValue& output : graph_.outputs) output = reordered(output, {}, nullptr);
    for (GraphAssignment& assignment : graph_.assignments) settle_assignment(assignment);
    return std::move(choices_);
  }

 private:
  static bool is_variable(const GraphNode& node) { return node.leaf == LeafKind::variable; }
  bool is_free(const GraphValue& value) const {
    return is_variable(*value.node) && value.node->leaf_position >= 0 && !fixed_[value.node->leaf_position];
  }

  void fix(const GraphNode& variable, const Layout& layout) {
    choices_.leaf_layouts[variable.leaf_position] = layout;
    choices_.leaf_layout_used[variable.leaf_position] = true;
    fixed_[variable.leaf_position] = true;
    layouts_[{const_cast<GraphNode*>(&variable), 0}] = layout;
  }

  // Whether the value, or a reordered copy made for an earlier user, lies so already.
  bool lies_as(const GraphValue& value, const Layout& wanted) const {
    if (same_places(value.spec().shape, layouts_.at(value), wanted)) return true;
    auto copies = made_.find(value);
    return copies != made_.end() && std::any_of(copies->second.begin(), copies->second.end(),
                                                [&](const Made& made) { return made.layout == wanted; });
  }

  // Bytes that a candidate would make us move first.
  int64_t reorder_cost(const GraphNode& node, const Candidate& candidate) const {
    int64_t cost = 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const GraphValue& input = node.inputs[i];
      if (!is_free(input) && !lies_as(input, candidate.input_layouts[i]))
        cost += static_cast<int64_t>(input.spec().bytes());
    }
    return cost;
  }

  void choose(GraphNode& node) {
    settle_behind(node);
    std::vector<Layout> arriving;
    for (const GraphValue& input : node.inputs) arriving.push_back(layouts_.at(input));
    std::vector<Candidate> candidates = candidates_for({node, arriving});
    std::vector<int64_t> costs;
    for (const Candidate& candidate : candidates) costs.push_back(reorder_cost(node, candidate));
    Candidate chosen = std::move(candidates[pick_candidate(node, candidates, costs)]);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (is_free(node.inputs[i])) fix(*node.inputs[i].node, chosen.input_layouts[i]);
      if (is_variable(*node.inputs[i].node)) choices_.leaf_layout_used[node.inputs[i].node->leaf_position] = true;
      node.inputs[i] = reordered(node.inputs[i], chosen.input_layouts[i], &node);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) layouts_[{&node, static_cast<int>(i)}] = chosen.output_layouts[i];
    choices_.of_node[&node] = {std::move(chosen), false};
  }

  // An elementwise op (a cast to bf16, say) takes what arrives, so it must not be the one that decides how a free
  // variable lies: whoever uses its result does.
  void settle_behind(const GraphNode& node) {
    if (!node.op->has(Trait::elementwise) || node.inputs.size() != 1 || !is_free(node.inputs[0])) return;
    for (GraphNode* user : uses_.nodes({const_cast<GraphNode*>(&node), 0})) {
      if (user->op->has(Trait::elementwise) || user->op->has(Trait::view)) continue;
      std::vector<Layout> arriving(user->inputs.size());
      Candidate first = std::move(candidates_for({*user, arriving}).front());
      for (size_t i = 0; i < user->inputs.size(); ++i)
        if (user->inputs[i] == GraphValue{const_cast<GraphNode*>(&node), 0} && first.input_layouts[i].block == 0)
          return fix(*node.inputs[0].node, first.input_layouts[i]);
    }
  }

  void choose_alias(GraphNode& node) {
    bool same_shape = node.inputs[0].spec().shape == node.outputs[0].shape;
    if (is_free(node.inputs[0])) fix(*node.inputs[0].node, {});
    if (!same_shape) node.inputs[0] = reordered(node.inputs[0], {}, &node);
    layouts_[{&node, 0}] = same_shape ? layouts_.at(node.inputs[0]) : Layout{};
    choices_.of_node[&node] = {{.name = "view"}, true};
  }

  GraphValue reordered(GraphValue value, const Layout& wanted, GraphNode* before) {
    Layout have = layouts_.at(value);
    if (same_places(value.spec().shape, have, wanted)) return value;
    for (const Made& made : made_[value])
      if (made.layout == wanted) return made.value;
    Attributes attributes{
        {"from_order", have.order}, {"from_block", have.block}, {"to_order", wanted.order}, {"to_block", wanted.block}};
    GraphNode* node = graph_.add(reorder_op, {value}, std::move(attributes), before);
    node->path = value.node->path;
    std::vector<Candidate> candidates = candidates_for({*node, {&have, 1}});
    layouts_[{node, 0}] = wanted;
    choices_.of_node[node] = {std::move(candidates.front()), false};
    made_[value].push_back({wanted, {node, 0}});
    return {node, 0};
  }

  void settle_assignment(GraphAssignment& assignment) {
    GraphNode& variable = *assignment.variable;
    Layout have = layouts_.at(assignment.value);
    if (!fixed_[variable.leaf_position] && have.block == 0) fix(variable, have);
    choices_.leaf_layout_used[variable.leaf_position] = true;
    assignment.value = reordered(assignment.value, choices_.leaf_layouts[variable.leaf_position], nullptr);
  }

  struct ValueHash {
    size_t operator()(const GraphValue& value) const {
      return std::hash<const void*>()(value.node) + static_cast<size_t>(value.index);
    }
  };
  struct Made {
    Layout layout;
    GraphValue value;
  };

  Graph& graph_;
  Uses uses_;  // before any reorder was put in
  Choices choices_;
  std::vector<bool> fixed_;
  std::unordered_map<GraphValue, Layout, ValueHash> layouts_;
  std::unordered_map<GraphValue, std::vector<Made>, ValueHash> made_;  // reordered copies of each value
};

}  // namespace

Choices choose_candidates(Graph& graph, std::span<const LeafLayout> leaves) { return Chooser(graph, leaves).run(); }

}  // namespace bonfire::runtime
