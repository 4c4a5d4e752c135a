#pragma once
// An LSTM of one layer or several as passes find it in a step: the recurrences, what stands between them, and their
// gradients; and how each of these values lies along time.

#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bonfire/passes/time_axis.h"

namespace bonfire::passes {

class LstmStack {
 public:
  // The stack that ends with this layer, which is in a part that the backward pass computes again: with those layers
  // that its input is made of along time, of the same part. Nothing where there is no gradient, or where something that
  // is not of the stack stands between what is.
  static std::optional<LstmStack> of(Graph& graph, GraphNode& last, const std::vector<TimeSpan>& spans);

  static bool is_layer(const GraphNode& node) { return !node.is_input() && node.name() == "lstm_layer"; }
  static bool is_gradient(const GraphNode& node) { return !node.is_input() && node.name() == "lstm_layer_gradient"; }
  static GraphNode* layer_of(const GraphNode& gradient) { return gradient.inputs[2].node; }

  using Nodes = std::vector<GraphNode*>;  // in the order of the graph
  // What is computed span by span, first to last and last to first. Some of the backward pass may be of the phase
  // forward: what only gradients read.
  const Nodes& forward() const { return members_[0]; }
  const Nodes& backward() const { return members_[1]; }
  // What depends on these and stands before the last of them.
  const Nodes& after_forward() const { return after_[0]; }
  const Nodes& after_backward() const { return after_[1]; }

  std::optional<TimeAxis> time_of(const GraphValue& value) const;
  TimeAxes inputs_of(const GraphNode& node) const;  // for each span; not of layers, their gradients and those below
  bool is_sum(const GraphNode& node) const { return sums_.contains(&node); }
  // The states that went in at each time: concat(h0, y but for the last). Their layer; null for any other node.
  GraphNode* shifted_layer(const GraphNode& node) const;
  // Zeros before and after its input, along time.
  static bool is_padding(const GraphNode& node, TimeAxis time);

  // Slices that lie in one span, and its number.
  const std::vector<std::pair<GraphNode*, size_t>>& slices() const { return slices_; }
  // It comes out of a recurrence, or of the gradient of one, and somebody else reads all of it.
  bool is_read_whole(const GraphValue& value) const;

 private:
  LstmStack(Graph& graph, const GraphNode& last, const std::vector<TimeSpan>& spans);

  bool find_forward(GraphNode& last);
  bool find_backward();
  void find_slices();
  bool put_in_order(size_t pass);

  bool is_between(const GraphNode& node) const;
  bool is_cheap(const GraphNode& node) const;
  bool add(const GraphValue& value, TimeAxis time);
  bool add_layer(GraphNode& layer);
  bool add_gradient(GraphNode& gradient);
  bool add_inputs(const GraphNode& node, const TimeAxes& inputs);
  bool add_readers(const GraphValue& value);
  void add_inside(GraphNode& node);
  void note_shift(const GraphNode& shifted);
  void note_dependence(const GraphNode& node);
  bool is_only_sliced(const GraphValue& value, TimeAxis time) const;
  std::optional<size_t> span_of_slice(const GraphNode& slice, TimeAxis time) const;

  Graph& graph_;
  const std::vector<TimeSpan>& spans_;
  const int64_t times_;
  const int part_;
  size_t pass_ = 0;                                      // that members are looked for in: 0 forward, 1 backward
  std::unordered_map<const GraphNode*, size_t> inside_;  // its members, and the pass
  std::map<std::pair<const GraphNode*, int>, TimeAxis> times_of_values_;
  std::unordered_map<const GraphNode*, TimeAxes> sums_;  // and the inputs' times
  std::unordered_set<const GraphNode*> dependent_;       // on a recurrence or the gradient of one
  std::unordered_set<int> numbers_;                      // of what is inside the forward pass
  std::vector<std::pair<GraphNode*, size_t>> slices_;
  std::unordered_set<const GraphNode*> sliced_;
  Nodes members_[2], after_[2];
};

}  // namespace bonfire::passes
