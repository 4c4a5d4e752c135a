#pragma once
// Graph: a step as passes see and change it: nodes in an order where inputs come first, the values that must come out,
// and the variables that get new values. Built from a trace when no plan for it exists.

#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "bonfire/graph/trace.h"

namespace bonfire {

struct GraphNode;

struct GraphValue {
  GraphNode* node = nullptr;
  int index = 0;

  const TensorSpec& spec() const;
  explicit operator bool() const { return node != nullptr; }
  friend bool operator==(const GraphValue&, const GraphValue&) = default;
};

struct GraphNode {
  const Op* op = nullptr;  // null for an input of the graph
  Attributes attributes;
  std::vector<GraphValue> inputs;
  std::vector<TensorSpec> outputs;
  std::string path;         // module path
  bool recomputed = false;  // made by recompute: never merged with its original

  LeafKind leaf = LeafKind::none;  // of a graph input
  int leaf_position = -1;          // its number among the trace's leaves

  Device device() const { return outputs.empty() ? Device{} : outputs[0].device; }
  bool is_input() const { return leaf != LeafKind::none; }
  std::string_view name() const { return is_input() ? std::string_view("input") : std::string_view(op->name); }
};

struct GraphAssignment {
  GraphNode* variable;  // the input node of that variable
  GraphValue value;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // `live` are the values that users or later backward passes will read.
  static std::unique_ptr<Graph> from_trace(const Trace& trace, std::span<const Value> live);

  GraphNode* add_input(LeafKind kind, const TensorSpec& spec);
  // Appends, or inserts before `before`, a node whose outputs the op's shape rule gives.
  GraphNode* add(const Op& op, std::vector<GraphValue> inputs, Attributes attributes = {}, GraphNode* before = nullptr);

  void replace_uses(GraphValue from, GraphValue to);  // everywhere: inputs, outputs, assignments
  void erase(GraphNode* node);                        // BONFIRE_CHECK fails when it is still used
  void move_before(GraphNode* node, GraphNode* before);

  std::list<GraphNode>& nodes() { return nodes_; }
  const std::list<GraphNode>& nodes() const { return nodes_; }
  std::vector<GraphValue> outputs;
  std::vector<GraphAssignment> assignments;

 private:
  std::list<GraphNode>::iterator position_of(GraphNode* node);
  std::list<GraphNode> nodes_;
  std::unordered_map<const GraphNode*, std::list<GraphNode>::iterator> positions_;
};

inline const TensorSpec& GraphValue::spec() const { return node->outputs[index]; }

// Who uses each value: nodes (one entry per input slot), and how often the graph itself does (outputs, assignments). A
// pass that changes the graph through it keeps it true without looking at the whole graph again.
class Uses {
 public:
  explicit Uses(const Graph& graph);
  void added(GraphNode* node);                                 // a new node, or one whose inputs were set anew
  void replace(Graph& graph, GraphValue from, GraphValue to);  // as Graph::replace_uses, at the cost of the users
  void erase(Graph& graph, GraphNode* node);                   // of an unused node
  const std::vector<GraphNode*>& nodes(GraphValue value) const;
  int graph_uses(GraphValue value) const;
  bool only_user(GraphValue value, const GraphNode* user) const;  // used by that node alone, in one slot or several

 private:
  struct Entry {
    std::vector<GraphNode*> nodes;
    int graph_uses = 0;
  };
  struct Key {
    size_t operator()(const GraphValue& value) const { return std::hash<const void*>()(value.node) * 31 + value.index; }
  };
  std::unordered_map<GraphValue, Entry, Key> entries_;
};

// BONFIRE_CHECK fails, naming `after`, when the graph is not well formed: an input that comes later, an index that does
// not exist, specs that the shape rule would not give, an assignment of another spec.
void verify(const Graph& graph, std::string_view after);

std::string print_graph(const Graph& graph);      // one line a node
std::string print_graph_dot(const Graph& graph);  // for Graphviz

}  // namespace bonfire
