#include "bonfire/runtime/layout.h"

#include <algorithm>
#include <optional>

#include "bonfire/base/error.h"
#include "bonfire/runtime/image_layouts.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::runtime {

namespace {

class Chooser {
 public:
  Chooser(Graph& graph, const GivenLayouts& given, bool fast_math)
      : graph_(graph),
        given_(given),
        fast_math_(fast_math),
        parameters_(graph),
        image_layouts_(choose_image_layouts(graph, given, parameters_, fast_math)) {
    for (GraphNode& node : graph.nodes())
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) users_[{&node, i}] = graph.users({&node, i});
    for (const LeafLayout& leaf : given.leaves) {
      choices_.leaf_layouts.push_back(leaf.layout);
      choices_.leaf_layout_used.push_back(false);
      fixed_.push_back(leaf.fixed);
    }
    if (timing_is_shared()) share_out_rest();
  }

  Choices run() {
    for (auto node = graph_.nodes().begin(); node != graph_.nodes().end(); ++node) {
      if (node->is_input()) {
        layouts_[{&*node, 0}] = is_variable(*node) ? choices_.leaf_layouts[node->leaf_position] : given_.of_leaf(*node);
      } else if (node->op->has(Trait::view)) {
        choose_alias(*node);
      } else {
        choose(*node);
      }
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (const std::optional<Layout> wanted = given_.of_output(i))
        graph_.set_output(i, reordered(graph_.outputs[i], *wanted, nullptr));
      choices_.output_layouts.push_back(layouts_.at(graph_.outputs[i]));
    }
    for (size_t i = 0; i < graph_.assignments.size(); ++i) settle_assignment(i);
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

  // Nodes that touch no images are asked for one by one, when their inputs' layouts are known; these are mostly
  // row-major.
  void share_out_rest() {
    std::vector<TimedNode> timed;
    for (const GraphNode& node : graph_.nodes()) {
      if (node.is_input() || node.op->has(Trait::view) || image_layouts_.contains(&node)) continue;
      const std::vector<Layout> arriving(node.inputs.size());
      if (std::vector<Candidate> all = candidates_for({node, arriving, fast_math_}); all.size() > 1)
        timed.push_back({&node, std::move(all)});
    }
    share_out_timing(timed);
  }

  // Whether the value, or a reordered copy made for an earlier user, lies so already.
  bool lies_as(const GraphValue& value, const Layout& wanted) const {
    if (same_places(value.spec().shape, layouts_.at(value), wanted)) return true;
    auto copies = made_.find(value);
    return copies != made_.end() && std::any_of(copies->second.begin(), copies->second.end(),
                                                [&](const Made& made) { return made.layout == wanted; });
  }

  // What a candidate would make us move: inputs that lie otherwise, and a parameter's gradient that it gives otherwise
  // than whoever takes it wants it.
  double reorder_cost(const GraphNode& node, const Candidate& candidate) {
    double cost = 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const GraphValue& input = node.inputs[i];
      if (!is_free(input) && !lies_as(input, candidate.input_layouts[i]))
        cost += reorder_nanoseconds(input.spec(), layouts_.at(input), candidate.input_layouts[i]);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      GraphValue output{const_cast<GraphNode*>(&node), static_cast<int>(i)};
      if (std::optional<Layout> wanted = wanted_by_user(output))
        cost += reorder_nanoseconds(output.spec(), candidate.output_layouts[i], *wanted);
    }
    return cost;
  }

  // How the variable that keeps a gradient wants it, or the node that updates the parameter by it. Elementwise ops and
  // collectives that take their operands one by one pass on what they get.
  std::optional<Layout> wanted_by_user(const GraphValue& value) {
    if (value.spec().shape.rank() != 4 || !parameters_.contains(value)) return {};
    if (auto known = wanted_.find(value); known != wanted_.end()) return known->second;
    std::optional<Layout> wanted;
    for (const GraphAssignment& assignment : graph_.assignments)
      if (assignment.value == value && fixed_[assignment.variable->leaf_position])
        wanted = choices_.leaf_layouts[assignment.variable->leaf_position];
    for (GraphNode* user : users_[value]) {
      if (wanted || user->op->has(Trait::view)) continue;
      if (std::optional<GraphValue> further = passed_on(*user, value)) {
        wanted = wanted_by_user(*further);
      } else {
        std::vector<Layout> arriving;
        for (const GraphValue& input : user->inputs) {
          auto known = layouts_.find(input);
          arriving.push_back(known == layouts_.end() ? Layout{} : known->second);
        }
        Candidate taker = std::move(candidates_for({*user, arriving, fast_math_}).front());
        for (size_t i = 0; i < user->inputs.size(); ++i)
          if (user->inputs[i] == value) wanted = taker.input_layouts[i];
      }
    }
    return wanted_[value] = wanted;
  }

  // The candidates of a node that keep its images as was decided for it.
  std::vector<Candidate> options(const GraphNode& node, std::span<const Layout> arriving) const {
    std::vector<Candidate> all = candidates_for({node, arriving, fast_math_});
    auto decided = image_layouts_.find(&node);
    if (decided == image_layouts_.end()) return all;
    auto fits = [&](const Candidate& candidate) {
      return keeps_images_as(parameters_, node, candidate, decided->second);
    };
    if (std::any_of(all.begin(), all.end(), fits))
      std::erase_if(all, [&](const Candidate& candidate) { return !fits(candidate); });
    return all;
  }

  // Images arrive as was decided for the node, and what goes on to all ranks as its taker wants it: so it lies in the
  // same way on each of them. Whether they must be reordered first or not.
  std::vector<Layout> arriving_at(const GraphNode& node) {
    auto decided = image_layouts_.find(&node);
    std::vector<Layout> arriving;
    for (const GraphValue& input : node.inputs) {
      bool image = decided != image_layouts_.end() && parameters_.is_image(input);
      arriving.push_back(image ? decided->second : layouts_.at(input));
      if (!node.op->has(Trait::collective)) continue;
      const std::optional<GraphValue> further = passed_on(node, input);
      if (!further) continue;
      if (std::optional<Layout> wanted = wanted_by_user(*further)) arriving.back() = *wanted;
    }
    return arriving;
  }

  void choose(GraphNode& node) {
    settle_by_users(node);
    std::vector<Candidate> candidates = options(node, arriving_at(node));
    std::vector<double> costs;
    for (const Candidate& candidate : candidates)
      costs.push_back(candidates.size() == 1 ? 0 : reorder_cost(node, candidate));
    Candidate chosen = std::move(candidates[pick_candidate(node, candidates, costs)]);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (is_free(node.inputs[i])) fix(*node.inputs[i].node, chosen.input_layouts[i]);
      if (is_variable(*node.inputs[i].node)) choices_.leaf_layout_used[node.inputs[i].node->leaf_position] = true;
      graph_.set_input(&node, i, reordered(node.inputs[i], chosen.input_layouts[i], &node));
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) layouts_[{&node, static_cast<int>(i)}] = chosen.output_layouts[i];
    choices_.of_node[&node] = {std::move(chosen), false};
  }

  // An elementwise op (a cast to bf16, say) takes what arrives, so it must not be the one that decides how a free
  // variable lies: whoever uses its result does.
  void settle_by_users(const GraphNode& node) {
    if (!node.op->has(Trait::elementwise) || node.inputs.size() != 1 || !is_free(node.inputs[0])) return;
    GraphValue result{const_cast<GraphNode*>(&node), 0};
    for (GraphNode* user : users_[result]) {
      if (user->op->has(Trait::elementwise) || user->op->has(Trait::view)) continue;
      std::vector<Candidate> candidates = options(*user, std::vector<Layout>(user->inputs.size()));
      const Candidate& taker = candidates[pick_candidate(*user, candidates, std::vector<double>(candidates.size()))];
      for (size_t i = 0; i < user->inputs.size(); ++i)
        if (user->inputs[i] == result && taker.input_layouts[i].block == 0)
          return fix(*node.inputs[0].node, taker.input_layouts[i]);
    }
  }

  void choose_alias(GraphNode& node) {
    bool same_shape = node.inputs[0].spec().shape == node.outputs[0].shape;
    if (is_free(node.inputs[0])) fix(*node.inputs[0].node, {});
    if (!same_shape) graph_.set_input(&node, 0, reordered(node.inputs[0], {}, &node));
    layouts_[{&node, 0}] = same_shape ? layouts_.at(node.inputs[0]) : Layout{};
    choices_.of_node[&node] = {{.name = "view"}, true};
  }

  GraphValue reordered(GraphValue value, const Layout& wanted, GraphNode* before) {
    Layout have = layouts_.at(value);
    if (same_places(value.spec().shape, have, wanted)) return value;
    for (const Made& made : made_[value])
      if (made.layout == wanted) return made.value;
    GraphNode* node = graph_.add(reorder_op(), {value}, reorder_attributes(have, wanted), before);
    node->path = value.node->path;
    std::vector<Candidate> candidates = candidates_for({*node, {&have, 1}});
    layouts_[{node, 0}] = wanted;
    choices_.of_node[node] = {std::move(candidates.front()), false};
    made_[value].push_back({wanted, {node, 0}});
    return {node, 0};
  }

  void settle_assignment(size_t place) {
    const GraphAssignment assignment = graph_.assignments[place];
    GraphNode& variable = *assignment.variable;
    Layout have = layouts_.at(assignment.value);
    if (!fixed_[variable.leaf_position] && have.block == 0) fix(variable, have);
    choices_.leaf_layout_used[variable.leaf_position] = true;
    graph_.set_assigned(place, reordered(assignment.value, choices_.leaf_layouts[variable.leaf_position], nullptr));
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
  const GivenLayouts& given_;
  bool fast_math_;
  ParameterValues parameters_;
  NodeLayouts image_layouts_;
  Choices choices_;
  std::vector<bool> fixed_;
  std::unordered_map<GraphValue, std::vector<GraphNode*>, ValueHash> users_;  // before any reorder was put in
  std::unordered_map<GraphValue, Layout, ValueHash> layouts_;
  std::unordered_map<GraphValue, std::optional<Layout>, ValueHash> wanted_;
  std::unordered_map<GraphValue, std::vector<Made>, ValueHash> made_;  // reordered copies of each value
};

}  // namespace

Choices choose_candidates(Graph& graph, const GivenLayouts& given, bool fast_math) {
  return Chooser(graph, given, fast_math).run();
}

}  // namespace bonfire::runtime
