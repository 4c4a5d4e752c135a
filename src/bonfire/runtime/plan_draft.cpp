#include "bonfire/runtime/plan_draft.h"

#include <algorithm>

#include "bonfire/graph/sliced_value.h"
#include "bonfire/runtime/emit_programs.h"
#include "bonfire/runtime/separate_outputs.h"

namespace bonfire::runtime {

namespace {

bool is_late(const GraphNode& node) { return node.phase != Phase::forward || node.recomputed; }

// Puts second runs of nodes into a graph whose kernels are chosen.
class SecondRuns {
 public:
  SecondRuns(Graph& graph, Choices& choices, const std::vector<bool>& again)
      : graph_(graph), choices_(choices), again_(again) {
    for (GraphNode& node : graph.nodes()) {
      place_[&node] = nodes_.size();
      nodes_.push_back(&node);
      again_[place_[&node]] = again_[place_[&node]] || is_view_of_repeated(node);
    }
  }

  void put_in() {
    find_first_readers();
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (before_[i] != nullptr) repeat(*nodes_[i], before_[i]);
    for (const auto& [reader, slot] : late_slots_) {
      const GraphValue value = reader->inputs[slot];
      graph_.set_input(reader, slot, {copies_.at(value.node), value.index});
    }
  }

 private:
  bool is_view_of_repeated(const GraphNode& node) const {
    return !node.is_input() && !is_late(node) && choices_.of_node.at(&node).alias &&
           again_[place_.at(node.inputs[0].node)];
  }

  // A reader on another device has a copy of its own.
  bool may_be_second(const GraphValue& value, const GraphNode& reader) const {
    return again_[place_.at(value.node)] && graph_.graph_uses(value) == 0 && reader.device() == value.node->device();
  }

  // From the last node to the first: what reads a second run is a late node, or a second run itself.
  void find_first_readers() {
    before_.assign(nodes_.size(), nullptr);
    for (size_t i = nodes_.size(); i-- > 0;) {
      GraphNode& node = *nodes_[i];
      const bool late = is_late(node);
      GraphNode* now = late ? &node : before_[i];
      if (now == nullptr || node.is_input()) continue;
      for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
        const GraphValue& input = node.inputs[slot];
        if (!may_be_second(input, node)) continue;
        GraphNode*& first = before_[place_.at(input.node)];
        if (first == nullptr || place_.at(now) < place_.at(first)) first = now;
        if (late) late_slots_.emplace_back(&node, slot);
      }
    }
  }

  void repeat(const GraphNode& node, GraphNode* before) {
    std::vector<GraphValue> inputs;
    for (const GraphValue& input : node.inputs) {
      const bool second = may_be_second(input, node) && copies_.contains(input.node);
      inputs.push_back(second ? GraphValue{copies_.at(input.node), input.index} : input);
    }
    GraphNode* copy = graph_.add_like(node, *node.op, std::move(inputs), node.attributes, before);
    copy->phase = std::max(Phase::backward, before->phase);
    copy->recomputed = true;
    choices_.of_node[copy] = choices_.of_node.at(&node);
    copies_[&node] = copy;
  }

  Graph& graph_;
  Choices& choices_;
  std::vector<bool> again_;
  std::vector<GraphNode*> nodes_;  // as they were
  std::unordered_map<const GraphNode*, size_t> place_;
  std::vector<GraphNode*> before_;  // [nodes]: where the second run comes; null: there is none
  std::vector<std::pair<GraphNode*, size_t>> late_slots_;
  std::unordered_map<const GraphNode*, GraphNode*> copies_;
};

}  // namespace

PlanDraft::PlanDraft(std::unique_ptr<Graph> graph, const GivenLayouts& given, const passes::Options& options,
                     const std::vector<bool>& again)
    : graph_(std::move(graph)), plan_(std::make_unique<Plan>()) {
  passes::run_pipeline(*graph_, options);
  require_no_placeholders(*graph_);
  separate_outputs(*graph_);
  choices_ = choose_candidates(*graph_, given, options.fast_math);
  for (const GraphNode& node : graph_->nodes()) place_of_.emplace(&node, place_of_.size());
  if (!again.empty()) SecondRuns(*graph_, choices_, again).put_in();
  order_ = order_nodes(*graph_);
  places_ = std::make_unique<ValuePlaces>(*graph_, order_, choices_, *plan_);
}

std::unique_ptr<Plan> PlanDraft::finish() {
  emit_programs(order_, *places_, choices_, *plan_);
  plan_->leaf_layouts = choices_.leaf_layouts;
  plan_->leaf_layout_used = choices_.leaf_layout_used;
  plan_->output_layouts = choices_.output_layouts;
  plan_->graph = std::move(graph_);
  return std::move(plan_);
}

}  // namespace bonfire::runtime
