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

// A list that the graph alone changes, since it knows who uses what. Everyone reads it like a vector.
template <class T>
class GraphList {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;

  const T& operator[](size_t index) const { return list_[index]; }
  const T& front() const { return list_.front(); }
  const T& back() const { return list_.back(); }
  const_iterator begin() const { return list_.begin(); }
  const_iterator end() const { return list_.end(); }
  size_t size() const { return list_.size(); }
  bool empty() const { return list_.empty(); }
  operator const std::vector<T>&() const { return list_; }
  friend bool operator==(const GraphList&, const GraphList&) = default;
  friend bool operator==(const GraphList& list, const std::vector<T>& other) { return list.list_ == other; }

 private:
  friend class Graph;
  std::vector<T> list_;
};

struct GraphNode {
  const Op* op = nullptr;  // null for an input of the graph
  Attributes attributes;
  GraphList<GraphValue> inputs;
  std::vector<TensorSpec> outputs;
  std::string path;  // module path
  Phase phase = Phase::forward;
  int number = -1;  // of the traced node that it is or stands for: its position in the trace
  int origin = -1;  // the number of the node whose gradient it computes, where that is of the same trace
  std::vector<int> recomputed_parts = {};  // that the backward pass computes again, and it is in: outermost first
  bool recomputed = false;                 // is such a second computation: never merged with its original

  LeafKind leaf = LeafKind::none;  // of a graph input
  int leaf_position = -1;          // its number among the trace's leaves

  Device device() const { return outputs.empty() ? Device{} : outputs[0].device; }
  bool is_input() const { return leaf != LeafKind::none; }
  std::string_view name() const { return is_input() ? std::string_view("input") : std::string_view(op->name); }

 private:
  friend class Graph;
  struct Uses {
    std::vector<GraphNode*> nodes;  // one entry for each input slot
    int by_graph = 0;               // as an output or an assignment
  };
  std::vector<Uses> uses_;  // [output], as far as one is used
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

  // `live` are the values that users or later backward passes will read; those that are leaves become the trace's.
  static std::unique_ptr<Graph> from_trace(Trace& trace, std::span<const Value> live);

  std::unique_ptr<Graph> copy() const;

  GraphNode* add_input(LeafKind kind, const TensorSpec& spec);
  // Appends, or inserts before `before`, a node whose outputs the op's shape rule gives, of the latest phase among
  // those of its inputs.
  GraphNode* add(const Op& op, std::vector<GraphValue> inputs, Attributes attributes = {}, GraphNode* before = nullptr);

  // The same with the path, the phase and the marks of a node that it stands for.
  GraphNode* add_like(const GraphNode& like, const Op& op, std::vector<GraphValue> inputs, Attributes attributes = {},
                      GraphNode* before = nullptr);

  void set_input(GraphNode* node, size_t slot, GraphValue value);
  void set_inputs(GraphNode* node, std::vector<GraphValue> inputs);
  void add_output(GraphValue value);
  void set_output(size_t place, GraphValue value);
  void set_outputs(const std::vector<GraphValue>& values);
  void assign(GraphNode* variable, GraphValue value);
  void set_assigned(size_t place, GraphValue value);
  void unassign(size_t place);

  void replace(GraphValue from, GraphValue to);  // everywhere: inputs, outputs, assignments; at the cost of the users
  void erase(GraphNode* node);                   // BONFIRE_CHECK fails when it is still used
  void move_before(GraphNode* node, GraphNode* before);

  const std::vector<GraphNode*>& users(GraphValue value) const;  // one entry for each input slot
  int graph_uses(GraphValue value) const;  // how often the graph itself does: outputs, assignments
  bool only_user(GraphValue value, const GraphNode* user) const;  // used by that node alone, in one slot or several

  std::list<GraphNode>& nodes() { return nodes_; }
  const std::list<GraphNode>& nodes() const { return nodes_; }
  GraphList<GraphValue> outputs;
  GraphList<GraphAssignment> assignments;

 private:
  static GraphNode::Uses& uses_of(GraphValue value);
  static void forget_use(GraphValue value, GraphNode* user);
  std::list<GraphNode>::iterator position_of(GraphNode* node);
  std::list<GraphNode> nodes_;
  std::unordered_map<const GraphNode*, std::list<GraphNode>::iterator> positions_;
};

inline const TensorSpec& GraphValue::spec() const { return node->outputs[index]; }

// BONFIRE_CHECK fails, naming `after`, when the graph is not well formed: an input that comes later, an index that does
// not exist, specs that the shape rule would not give, an assignment of another spec.
void verify(const Graph& graph, std::string_view after);

std::string print_graph(const Graph& graph);      // one line a node
std::string print_graph_dot(const Graph& graph);  // for Graphviz

}  // namespace bonfire
