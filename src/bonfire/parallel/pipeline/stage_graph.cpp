#include "bonfire/parallel/pipeline/stage_graph.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/passes/widen_where_read.h"

namespace bonfire::pipeline {
namespace {

OutputSpecs infer_after_forward(const InferContext& context) { return {context.input(0)}; }

class Programs {
 public:
  Programs(StageGraph& stage, bool splits_weights)
      : stage_(stage), graph_(*stage.graph), splits_weights_(splits_weights) {}

  StageStep run() {
    take_out_barriers();
    find_what_is_everywhere();
    place_nodes();
    note_slots();
    for (int part = 0; part < kParts; ++part) {
      const auto i = static_cast<size_t>(part);
      stage_.step.writing[i] = build(static_cast<Part>(part), false);
      if (part > 0) stage_.step.adding[i] = build(static_cast<Part>(part), true);
    }
    return std::move(stage_.step);
  }

 private:
  using ValueKey = std::pair<const GraphNode*, int>;

  void take_out_barriers() {
    for (auto node = graph_.nodes().begin(); node != graph_.nodes().end();) {
      GraphNode& one = *node++;
      if (one.is_input() || one.op != &after_forward_op) continue;
      graph_.replace({&one, 0}, one.inputs[0]);
      graph_.erase(&one);
    }
  }

  // Each program that reads it makes it itself: what is made of inputs of the step alone, and what costs next to
  // nothing to make of parameters.
  void find_what_is_everywhere() {
    std::unordered_set<const GraphNode*> of_variables;
    for (const GraphNode& node : graph_.nodes()) {
      if (node.is_input()) {
        if (source_of(node).value < 0) everywhere_.insert(&node);
        continue;
      }
      if (node.op->has(Trait::stateful | Trait::collective)) continue;
      bool all = true, has_variable = false;
      for (const GraphValue& input : node.inputs) {
        all &= everywhere_.contains(input.node);
        has_variable |= input.node->leaf == LeafKind::variable || of_variables.contains(input.node);
      }
      if (!all || (has_variable && !node.op->has(Trait::view | Trait::elementwise))) continue;
      everywhere_.insert(&node);
      if (has_variable) of_variables.insert(&node);
    }
  }

  const LeafSource& source_of(const GraphNode& input) const {
    BONFIRE_CHECK(input.leaf_position >= 0, "a pass has added an input");
    return stage_.leaves[static_cast<size_t>(input.leaf_position)];
  }

  // --- which program computes a node ---------------------------------------------------------------------------------

  void place_nodes() {
    for (const auto& [node, phase] : stage_.sent)
      if (phase == Phase::forward) place_with_inputs(node, Part::forward);
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (stage_.result_parts[i] == Part::forward && graph_.outputs[i].node->phase == Phase::forward)
        place_with_inputs(graph_.outputs[i].node, Part::forward);  // else it comes with gradients, which would be kept
    for (size_t i = 0; i < graph_.assignments.size(); ++i)
      if (stage_.assigned_parts[i] == Part::forward) place_with_inputs(graph_.assignments[i].value.node, Part::forward);
    if (splits_weights_)
      for (const auto& [node, phase] : stage_.sent)
        if (phase == Phase::backward) place_with_inputs(node, Part::backward);
    for (const GraphNode& node : graph_.nodes())
      if (!node.is_input() && !everywhere_.contains(&node)) part_of_.emplace(&node, last_part());
  }

  Part last_part() const { return splits_weights_ ? Part::weights : Part::backward; }

  void place_with_inputs(const GraphNode* root, Part part) {
    std::vector<const GraphNode*> left{root};
    while (!left.empty()) {
      const GraphNode* node = left.back();
      left.pop_back();
      if (node->is_input()) {
        const int value = source_of(*node).value;
        BONFIRE_CHECK(part != Part::forward || value < 0 || value_at(value).phase == Phase::forward,
                      "F reads a gradient of a later stage");
        continue;
      }
      if (everywhere_.contains(node) || !part_of_.emplace(node, part).second) continue;
      for (const GraphValue& input : node->inputs) left.push_back(input.node);
    }
  }

  const SlotValue& value_at(int value) const { return stage_.step.values[static_cast<size_t>(value)]; }

  Part part_of_assignment(size_t i) const {
    const auto found = part_of_.find(graph_.assignments[i].value.node);
    const Part least = stage_.assigned_parts[i] == Part::forward ? Part::forward : Part::backward;
    return found == part_of_.end() ? least : std::max(least, found->second);
  }

  Part part_of_result(size_t i) const {
    const auto found = part_of_.find(graph_.outputs[i].node);
    return found == part_of_.end() ? Part::forward : found->second;
  }

  // --- what one program leaves for a later one -----------------------------------------------------------------------

  void note_slots() {
    for (size_t i = 0, next = 0; i < stage_.step.results.size(); ++i)
      if (stage_.step.results[i] >= 0) results_.push_back({next++, stage_.step.results[i]});
    for (const GraphNode& node : graph_.nodes())
      if (auto reader = part_of_.find(&node); reader != part_of_.end())
        for (const GraphValue& input : node.inputs) note(input, reader->second);
    for (size_t i = 0; i < graph_.assignments.size(); ++i) note(graph_.assignments[i].value, part_of_assignment(i));
  }

  void note(GraphValue value, Part reader) {
    while (is_made_again(*value.node, reader)) value = value.node->inputs[0];
    const auto maker = part_of_.find(value.node);
    if (maker == part_of_.end() || maker->second == reader) return;
    BONFIRE_CHECK(maker->second < reader, "{} is read before it is computed", value.node->name());
    auto [slot, fresh] = slots_.emplace(ValueKey(value.node, value.index), static_cast<int>(stage_.step.values.size()));
    if (!fresh) return;
    stage_.step.values.push_back({.spec = value.spec()});
    in_slots_.push_back({value, slot->second});
  }

  // Of another program, but whoever reads it makes it for itself: what lies between is smaller, or the same.
  bool is_made_again(const GraphNode& node, Part reader) const {
    const auto maker = part_of_.find(&node);
    return maker != part_of_.end() && maker->second != reader && (node.op->has(Trait::view) || passes::widens(node));
  }

  // --- the programs --------------------------------------------------------------------------------------------------

  struct Building {
    ProgramGraph program;
    Part part;
    std::map<ValueKey, GraphValue> of_value;
    std::unordered_map<const GraphNode*, GraphNode*> of_node;
  };

  GraphValue input_of(Building& to, const GraphValue& value, LeafKind kind, LeafSource source) {
    GraphNode* leaf = to.program.graph->add_input(kind, value.spec());
    leaf->leaf_position = static_cast<int>(to.program.leaves.size());
    leaf->path = value.node->is_input() ? value.node->path : "";
    to.program.leaves.push_back(source);
    return to.of_value[{value.node, value.index}] = {leaf, 0};
  }

  GraphValue copied(Building& to, const GraphValue& value) {
    const ValueKey key(value.node, value.index);
    if (auto found = to.of_value.find(key); found != to.of_value.end()) return found->second;
    const GraphNode& node = *value.node;
    if (node.is_input()) return input_of(to, value, node.leaf, source_of(node));
    const auto maker = part_of_.find(&node);
    if (maker != part_of_.end() && maker->second != to.part && !is_made_again(node, to.part))
      return input_of(to, value, LeafKind::feed, {.value = slots_.at(key)});
    return {copy_node(to, node), value.index};
  }

  GraphNode* copy_node(Building& to, const GraphNode& node) {
    if (auto found = to.of_node.find(&node); found != to.of_node.end()) return found->second;
    std::vector<GraphValue> inputs;
    for (const GraphValue& input : node.inputs) inputs.push_back(copied(to, input));
    GraphNode* made = to.program.graph->add_like(node, *node.op, std::move(inputs), node.attributes);
    return to.of_node[&node] = made;
  }

  // `adds`: to the gradients that are there.
  ProgramGraph build(Part part, bool adds) {
    Building to{.program = {}, .part = part, .of_value = {}, .of_node = {}};
    to.program.graph = std::make_unique<Graph>();
    Graph& graph = *to.program.graph;
    for (const GraphNode& node : graph_.nodes())
      if (auto found = part_of_.find(&node); found != part_of_.end() && found->second == part) copy_node(to, node);
    for (const auto& [result, value] : results_)
      if (part_of_result(result) == part) add_output(to, graph_.outputs[result], value);
    for (const auto& [value, slot] : in_slots_)
      if (part_of_.at(value.node) == part) add_output(to, value, slot);
    for (size_t i = 0; i < graph_.assignments.size(); ++i)
      if (part_of_assignment(i) == part) assign(to, graph_.assignments[i], adds);
    const bool is_empty =
        std::all_of(graph.nodes().begin(), graph.nodes().end(), [](const GraphNode& node) { return node.is_input(); });
    return is_empty && to.program.assigned.empty() ? ProgramGraph{} : std::move(to.program);
  }

  void add_output(Building& to, const GraphValue& value, int slot) {
    to.program.graph->add_output(copied(to, value));
    to.program.outputs.push_back(slot);
  }

  void assign(Building& to, const GraphAssignment& one, bool adds) {
    Graph& graph = *to.program.graph;
    GraphValue value = copied(to, one.value);
    const GraphValue variable = copied(to, {one.variable, 0});
    if (adds) {
      GraphNode* sum = graph.add(add_, {variable, value});
      sum->phase = Phase::backward;
      sum->path = one.value.node->path;
      value = {sum, 0};
    }
    graph.assign(variable.node, value);
    to.program.assigned.push_back(source_of(*one.variable).leaf);
  }

  StageGraph& stage_;
  Graph& graph_;
  const bool splits_weights_;
  const Op& add_ = find_op("add");
  std::unordered_set<const GraphNode*> everywhere_;
  std::unordered_map<const GraphNode*, Part> part_of_;  // of what is not everywhere
  std::vector<std::pair<size_t, int>> results_;         // number among this stage's, value
  std::map<ValueKey, int> slots_;                       // values
  std::vector<std::pair<GraphValue, int>> in_slots_;    // in their order
};

}  // namespace

const Op& after_forward_op =
    register_op({.name = "after_forward", .infer = infer_after_forward, .traits = Trait::placeholder});

StageStep cut_programs(StageGraph stage, bool splits_weights) { return Programs(stage, splits_weights).run(); }

}  // namespace bonfire::pipeline
