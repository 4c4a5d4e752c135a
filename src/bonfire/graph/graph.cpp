#include "bonfire/graph/graph.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire {

std::unique_ptr<Graph> Graph::from_trace(const Trace& trace, std::span<const Value> live) {
  auto graph = std::make_unique<Graph>();
  std::unordered_map<const Node*, GraphNode*> built;
  std::vector<GraphNode*> leaves;
  for (const Value& leaf : trace.leaves()) {
    GraphNode* node = &graph->nodes_.emplace_back();
    graph->positions_[node] = std::prev(graph->nodes_.end());
    node->leaf = leaf.node->is_leaf() ? leaf.node->leaf : LeafKind::feed;
    node->outputs.push_back(leaf.spec());
    node->leaf_position = static_cast<int>(leaves.size());
    if (leaf.node->variable) node->path = leaf.node->variable->name;
    leaves.push_back(node);
  }
  auto translate = [&](const Value& value) -> GraphValue {
    if (trace.pending(value)) return {built.at(value.node.get()), static_cast<int>(value.index)};
    return {leaves[const_cast<Trace&>(trace).leaf_position(value)], 0};
  };
  for (const NodePtr& traced : trace.nodes()) {
    GraphNode& node = graph->nodes_.emplace_back();
    graph->positions_[&node] = std::prev(graph->nodes_.end());
    node.op = traced->op;
    node.attributes = traced->attributes;
    for (const Value& input : traced->inputs) node.inputs.push_back(translate(input));
    for (const NodeOutput& output : traced->outputs) node.outputs.push_back(output.spec);
    if (traced->path != nullptr) node.path = *traced->path;
    built[traced.get()] = &node;
  }
  for (const Value& value : live) graph->outputs.push_back(translate(value));
  for (const bonfire::Assignment& assignment : trace.assignments())
    graph->assignments.push_back({leaves[assignment.leaf], translate(assignment.value)});
  return graph;
}

GraphNode* Graph::add_input(LeafKind kind, const TensorSpec& spec) {
  // Inputs stand first, in order.
  auto before = nodes_.begin();
  while (before != nodes_.end() && before->is_input()) ++before;
  auto position = nodes_.emplace(before);
  GraphNode& node = *position;
  positions_[&node] = position;
  node.leaf = kind;
  node.outputs.push_back(spec);
  return &node;
}

GraphNode* Graph::add(const Op& op, std::vector<GraphValue> inputs, Attributes attributes, GraphNode* before) {
  std::vector<const TensorSpec*> specs;
  for (const GraphValue& input : inputs) specs.push_back(&input.spec());
  OutputSpecs outputs = op.infer({op, specs, attributes});
  auto position = nodes_.emplace(before == nullptr ? nodes_.end() : position_of(before));
  GraphNode& node = *position;
  positions_[&node] = position;
  node.op = &op;
  node.attributes = std::move(attributes);
  node.inputs = std::move(inputs);
  node.outputs.assign(outputs.begin(), outputs.end());
  return &node;
}

void Graph::replace_uses(GraphValue from, GraphValue to) {
  for (GraphNode& node : nodes_) std::replace(node.inputs.begin(), node.inputs.end(), from, to);
  std::replace(outputs.begin(), outputs.end(), from, to);
  for (GraphAssignment& assignment : assignments)
    if (assignment.value == from) assignment.value = to;
}

void Graph::erase(GraphNode* node) {
  auto position = position_of(node);
  positions_.erase(node);
  nodes_.erase(position);
}

void Graph::move_before(GraphNode* node, GraphNode* before) {
  nodes_.splice(before == nullptr ? nodes_.end() : position_of(before), nodes_, position_of(node));
}

std::list<GraphNode>::iterator Graph::position_of(GraphNode* node) {
  auto found = positions_.find(node);
  BONFIRE_CHECK(found != positions_.end(), "the node is not of this graph");
  return found->second;
}

Uses::Uses(const Graph& graph) {
  for (const GraphNode& node : graph.nodes())
    for (const GraphValue& input : node.inputs) entries_[input].nodes.push_back(const_cast<GraphNode*>(&node));
  for (const GraphValue& output : graph.outputs) ++entries_[output].graph_uses;
  for (const GraphAssignment& assignment : graph.assignments) ++entries_[assignment.value].graph_uses;
}

void Uses::added(GraphNode* node) {
  for (const GraphValue& input : node->inputs) entries_[input].nodes.push_back(node);
}

void Uses::replace(Graph& graph, GraphValue from, GraphValue to) {
  auto found = entries_.find(from);
  if (found == entries_.end()) return;
  Entry moved = std::move(found->second);
  entries_.erase(found);
  for (GraphNode* user : moved.nodes) std::replace(user->inputs.begin(), user->inputs.end(), from, to);
  if (moved.graph_uses > 0) {
    std::replace(graph.outputs.begin(), graph.outputs.end(), from, to);
    for (GraphAssignment& assignment : graph.assignments)
      if (assignment.value == from) assignment.value = to;
  }
  Entry& target = entries_[to];
  target.nodes.insert(target.nodes.end(), moved.nodes.begin(), moved.nodes.end());
  target.graph_uses += moved.graph_uses;
}

void Uses::erase(Graph& graph, GraphNode* node) {
  for (const GraphValue& input : node->inputs)
    if (auto found = entries_.find(input); found != entries_.end()) std::erase(found->second.nodes, node);
  for (int i = 0; i < static_cast<int>(node->outputs.size()); ++i) entries_.erase({node, i});
  graph.erase(node);
}

const std::vector<GraphNode*>& Uses::nodes(GraphValue value) const {
  static const std::vector<GraphNode*> none;
  auto found = entries_.find(value);
  return found == entries_.end() ? none : found->second.nodes;
}

int Uses::graph_uses(GraphValue value) const {
  auto found = entries_.find(value);
  return found == entries_.end() ? 0 : found->second.graph_uses;
}

bool Uses::only_user(GraphValue value, const GraphNode* user) const {
  if (graph_uses(value) > 0) return false;
  const std::vector<GraphNode*>& users = nodes(value);
  return !users.empty() && std::all_of(users.begin(), users.end(), [&](const GraphNode* one) { return one == user; });
}

}  // namespace bonfire
