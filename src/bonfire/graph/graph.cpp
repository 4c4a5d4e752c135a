#include "bonfire/graph/graph.h"

#include <algorithm>
#include <utility>

#include "bonfire/base/error.h"

namespace bonfire {

std::unique_ptr<Graph> Graph::from_trace(Trace& trace, std::span<const Value> live) {
  for (const Value& value : live)
    if (!trace.pending(value)) trace.leaf_position(value);
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
    return {leaves[trace.leaf_position(value)], 0};
  };
  for (const NodePtr& traced : trace.nodes()) {
    GraphNode& node = graph->nodes_.emplace_back();
    graph->positions_[&node] = std::prev(graph->nodes_.end());
    node.op = traced->op;
    node.attributes = traced->attributes;
    std::vector<GraphValue> inputs;
    for (const Value& input : traced->inputs) inputs.push_back(translate(input));
    graph->set_inputs(&node, std::move(inputs));
    for (const NodeOutput& output : traced->outputs) node.outputs.push_back(output.spec);
    if (traced->path != nullptr) node.path = *traced->path;
    node.phase = traced->phase;
    node.number = static_cast<int>(traced->position);
    if (traced->origin.trace == trace.id()) node.origin = static_cast<int>(traced->origin.position);
    if (traced->recomputed_part != 0) node.recomputed_parts = trace.recomputed_parts(traced->recomputed_part);
    built[traced.get()] = &node;
  }
  for (const Value& value : live) graph->add_output(translate(value));
  for (const bonfire::Assignment& assignment : trace.assignments())
    graph->assign(leaves[assignment.leaf], translate(assignment.value));
  return graph;
}

std::unique_ptr<Graph> Graph::copy() const {
  auto made = std::make_unique<Graph>();
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  auto copied = [&](const GraphValue& value) { return GraphValue{copies.at(value.node), value.index}; };
  for (const GraphNode& node : nodes_) {
    if (node.is_input()) {
      GraphNode* leaf = made->add_input(node.leaf, node.outputs[0]);
      leaf->leaf_position = node.leaf_position;
      leaf->path = node.path;
      copies[&node] = leaf;
      continue;
    }
    std::vector<GraphValue> inputs;
    for (const GraphValue& input : node.inputs) inputs.push_back(copied(input));
    copies[&node] = made->add_like(node, *node.op, std::move(inputs), node.attributes);
  }
  for (const GraphValue& output : outputs) made->add_output(copied(output));
  for (const GraphAssignment& one : assignments) made->assign(copies.at(one.variable), copied(one.value));
  return made;
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
  node.outputs.assign(outputs.begin(), outputs.end());
  for (const GraphValue& input : inputs) node.phase = std::max(node.phase, input.node->phase);
  set_inputs(&node, std::move(inputs));
  return &node;
}

GraphNode* Graph::add_like(const GraphNode& like, const Op& op, std::vector<GraphValue> inputs, Attributes attributes,
                           GraphNode* before) {
  GraphNode* node = add(op, std::move(inputs), std::move(attributes), before);
  node->path = like.path;
  node->phase = like.phase;
  node->number = like.number;
  node->origin = like.origin;
  node->recomputed_parts = like.recomputed_parts;
  node->recomputed = like.recomputed;
  return node;
}

GraphNode::Uses& Graph::uses_of(GraphValue value) {
  std::vector<GraphNode::Uses>& all = value.node->uses_;
  if (all.size() <= static_cast<size_t>(value.index)) all.resize(static_cast<size_t>(value.index) + 1);
  return all[static_cast<size_t>(value.index)];
}

void Graph::forget_use(GraphValue value, GraphNode* user) {
  std::vector<GraphNode*>& users = uses_of(value).nodes;
  auto one = std::find(users.begin(), users.end(), user);
  BONFIRE_CHECK(one != users.end(), "a use is not known");
  users.erase(one);
}

void Graph::set_input(GraphNode* node, size_t slot, GraphValue value) {
  GraphValue& input = node->inputs.list_[slot];
  if (input == value) return;
  forget_use(input, node);
  input = value;
  uses_of(value).nodes.push_back(node);
}

void Graph::set_inputs(GraphNode* node, std::vector<GraphValue> inputs) {
  for (const GraphValue& input : node->inputs) forget_use(input, node);
  node->inputs.list_ = std::move(inputs);
  for (const GraphValue& input : node->inputs) uses_of(input).nodes.push_back(node);
}

void Graph::add_output(GraphValue value) {
  outputs.list_.push_back(value);
  ++uses_of(value).by_graph;
}

void Graph::set_output(size_t place, GraphValue value) {
  --uses_of(outputs[place]).by_graph;
  outputs.list_[place] = value;
  ++uses_of(value).by_graph;
}

void Graph::set_outputs(const std::vector<GraphValue>& values) {
  for (const GraphValue& value : outputs) --uses_of(value).by_graph;
  outputs.list_.clear();
  for (const GraphValue& value : values) add_output(value);
}

void Graph::assign(GraphNode* variable, GraphValue value) {
  assignments.list_.push_back({variable, value});
  ++uses_of(value).by_graph;
}

void Graph::set_assigned(size_t place, GraphValue value) {
  --uses_of(assignments[place].value).by_graph;
  assignments.list_[place].value = value;
  ++uses_of(value).by_graph;
}

void Graph::unassign(size_t place) {
  --uses_of(assignments[place].value).by_graph;
  assignments.list_.erase(assignments.list_.begin() + static_cast<std::ptrdiff_t>(place));
}

void Graph::replace(GraphValue from, GraphValue to) {
  if (from == to) return;
  GraphNode::Uses moved = std::exchange(uses_of(from), {});
  for (GraphNode* user : moved.nodes) std::replace(user->inputs.list_.begin(), user->inputs.list_.end(), from, to);
  if (moved.by_graph > 0) {
    std::replace(outputs.list_.begin(), outputs.list_.end(), from, to);
    for (GraphAssignment& assignment : assignments.list_)
      if (assignment.value == from) assignment.value = to;
  }
  GraphNode::Uses& target = uses_of(to);
  target.nodes.insert(target.nodes.end(), moved.nodes.begin(), moved.nodes.end());
  target.by_graph += moved.by_graph;
}

void Graph::erase(GraphNode* node) {
  for (const GraphNode::Uses& uses : node->uses_)
    BONFIRE_CHECK(uses.nodes.empty() && uses.by_graph == 0, "[{}] is erased while something still uses it",
                  node->name());
  set_inputs(node, {});
  auto position = position_of(node);
  positions_.erase(node);
  nodes_.erase(position);
}

const std::vector<GraphNode*>& Graph::users(GraphValue value) const { return uses_of(value).nodes; }

int Graph::graph_uses(GraphValue value) const { return uses_of(value).by_graph; }

bool Graph::only_user(GraphValue value, const GraphNode* user) const {
  const GraphNode::Uses& uses = uses_of(value);
  return uses.by_graph == 0 && !uses.nodes.empty() &&
         std::all_of(uses.nodes.begin(), uses.nodes.end(), [&](const GraphNode* one) { return one == user; });
}

void Graph::move_before(GraphNode* node, GraphNode* before) {
  nodes_.splice(before == nullptr ? nodes_.end() : position_of(before), nodes_, position_of(node));
}

std::list<GraphNode>::iterator Graph::position_of(GraphNode* node) {
  auto found = positions_.find(node);
  BONFIRE_CHECK(found != positions_.end(), "the node is not of this graph");
  return found->second;
}

}  // namespace bonfire
