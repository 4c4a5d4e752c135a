#include "bonfire/passes/shard.h"

#include <algorithm>
#include <unordered_map>

#include "bonfire/base/error.h"
#include "bonfire/comm/all_reduce.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/passes/shard_values.h"

namespace bonfire::passes {
namespace {

// The sharding that a slice is, for the rank that is number `place` of `parts`.
std::optional<Sharding> sharding_of(const Slice& slice, int64_t parts, int64_t place) {
  if (slice.is_range()) return {};
  const Shape& whole = slice.whole();
  for (int axis = 0; axis < whole.rank(); ++axis) {
    const int64_t blocks = slice.packed() == axis ? slice.blocks() : 1;
    if (slice.extent()[axis] * blocks == whole[axis] || whole[axis] % (parts * blocks) != 0) continue;
    if (slice == Slice::part(whole, axis, place, parts, blocks)) return Sharding::split(axis, blocks);
  }
  return {};
}

Slice slice_of(const GraphNode& placeholder) { return Slice::from_words(placeholder.attributes.list("slice")); }

// Nodes in place of the one that the walk is at.
class Builder final : public ShardBuilder {
 public:
  Builder(Graph& graph, GraphNode& node, const ShardContext& context, std::vector<GraphValue> inputs)
      : graph_(graph), node_(node), context_(context), inputs_(std::move(inputs)) {}

  const ShardContext& context() const override { return context_; }
  GraphValue input(size_t i) const override { return inputs_[i]; }
  GraphValue add(std::string_view op, std::vector<GraphValue> inputs, Attributes attributes) override {
    return {add_node(find_op(op), std::move(inputs), std::move(attributes)), 0};
  }
  GraphNode* add_node(const Op& op, std::vector<GraphValue> inputs, Attributes attributes) override {
    return graph_.add_like(node_, op, std::move(inputs), std::move(attributes), &node_);
  }
  GraphValue all_reduce(GraphValue value, Over over) override {
    const comm::Reduce reduce = over == Over::sum ? comm::Reduce::sum : comm::Reduce::max;
    return {add_node(comm::all_reduce_op(), {value}, comm::all_reduce_attributes(Axis::tensor, reduce)), 0};
  }

 private:
  Graph& graph_;
  GraphNode& node_;
  const ShardContext& context_;
  std::vector<GraphValue> inputs_;
};

class Walk {
 public:
  Walk(Graph& graph, const Mesh& mesh)
      : graph_(graph),
        parts_(mesh.size(Axis::tensor)),
        place_(mesh.place(Axis::tensor)),
        values_(graph, parts_, place_) {}

  void run() {
    note_what_is_wanted();
    std::vector<GraphNode*> traced;
    for (GraphNode& node : graph_.nodes())
      if (!node.is_input()) traced.push_back(&node);
    for (GraphNode* node : traced) visit(*node);
    hand_out();
    for (auto node = replaced_.rbegin(); node != replaced_.rend(); ++node) graph_.erase(*node);
  }

 private:
  // From the slices that variables take of their new values, back through what keeps each element in its place.
  void note_what_is_wanted() {
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node) {
      if (node->is_input() || node->inputs.empty()) continue;
      if (node->op == &slice_of_whole_) {
        if (auto split = sharding_of(slice_of(*node), parts_, place_)) wanted_[node->inputs[0].node] = *split;
        continue;
      }
      auto found = wanted_.find(&*node);
      const bool in_place = node->op->has(Trait::elementwise) || node->op->has(Trait::one_by_one);
      if (found == wanted_.end() || !in_place || node->outputs.size() != 1) continue;
      for (const GraphValue& input : node->inputs)
        if (input.index == 0 && input.spec().shape == node->outputs[0].shape)
          wanted_.try_emplace(input.node, found->second);
    }
  }

  void visit(GraphNode& node) {
    if (node.op == &whole_of_slice_) return read_slice(node);
    if (node.op == &slice_of_whole_) return take_slice(node);
    if (std::ranges::all_of(node.inputs, [&](const GraphValue& input) { return values_.is_as_traced(input); }) &&
        !wanted_.contains(&node))
      return;
    complete_what_others_read(node);
    std::vector<TensorSpec> inputs;
    std::vector<Sharding> shardings;
    for (const GraphValue& input : node.inputs) {
      inputs.push_back(input.spec());
      shardings.push_back(values_.sharding(input));
    }
    ShardContext context{*node.op, node.attributes, inputs, node.outputs, shardings};
    context.parts = parts_;
    context.place = place_;
    if (auto found = wanted_.find(&node); found != wanted_.end()) context.wanted = found->second;
    const bool any = std::ranges::any_of(shardings, [](const Sharding& one) { return !one.is_whole(); });
    if (node.op->shard == nullptr || (!any && !context.wanted)) return compute_whole(node, any);
    const std::optional<ShardAnswer> answer = node.op->shard(context);
    const bool changes = answer && (std::ranges::any_of(answer->inputs, is_parted) ||
                                    std::ranges::any_of(answer->outputs, is_parted) || answer->build != nullptr);
    if (!changes || !fits(context, *answer)) return compute_whole(node, any);
    compute_parts(node, context, *answer);
  }

  static bool is_parted(const Sharding& one) { return !one.is_whole(); }

  static bool fits(const ShardContext& context, const ShardAnswer& answer) {
    for (size_t i = 0; i < answer.inputs.size(); ++i)
      if (!context.can_split(context.inputs[i].shape, answer.inputs[i])) return false;
    for (size_t i = 0; i < answer.outputs.size(); ++i)
      if (!context.can_split(context.outputs[i].shape, answer.outputs[i])) return false;
    return true;
  }

  void read_slice(GraphNode& node) {
    const std::optional<Sharding> split = sharding_of(slice_of(node), parts_, place_);
    if (!split) return;  // an error when the step is planned
    values_.set({&node, 0}, *split, values_.as_whole(node.inputs[0], &node, node));
    replaced_.push_back(&node);
  }

  void take_slice(GraphNode& node) {
    const std::optional<Sharding> split = sharding_of(slice_of(node), parts_, place_);
    if (!split) return compute_whole(node, false);
    values_.set({&node, 0}, {}, values_.as(node.inputs[0], *split, &node, node));
    replaced_.push_back(&node);
  }

  // Of partial sums that several read, each would have a collective of its own.
  void complete_what_others_read(GraphNode& node) {
    for (const GraphValue& input : node.inputs) {
      if (!values_.sharding(input).is_partial()) continue;
      const size_t uses = graph_.users(input).size() + static_cast<size_t>(graph_.graph_uses(input));
      const bool later = !values_.added_later(input) || node.op->shard == find_op("add").shard;
      if (uses > 1 || !later) complete(input, node);
    }
  }
  void complete(GraphValue value, GraphNode& before) {
    values_.set(value, {}, values_.as_whole(value, &before, *value.node));
  }

  void compute_whole(GraphNode& node, bool gathers) {
    const Op* reader = gathers ? node.op : nullptr;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const GraphValue whole = values_.as_whole(node.inputs[i], &node, node, reader);
      if (!(whole == node.inputs[i])) graph_.set_input(&node, i, whole);
    }
  }

  void compute_parts(GraphNode& node, const ShardContext& context, const ShardAnswer& answer) {
    if (answer.adds_later) return add_later(node, answer);
    std::vector<GraphValue> inputs, outputs;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      inputs.push_back(values_.as(node.inputs[i], answer.inputs[i], &node, node));
    if (answer.build != nullptr) {
      Builder builder(graph_, node, context, std::move(inputs));
      outputs = answer.build(builder);
    } else {
      GraphNode* local = graph_.add_like(node, *node.op, std::move(inputs), answer.attributes, &node);
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) outputs.push_back({local, i});
    }
    BONFIRE_CHECK(outputs.size() == node.outputs.size(), "{} has {} local outputs", node.name(), outputs.size());
    for (int i = 0; i < static_cast<int>(outputs.size()); ++i) {
      const auto at = static_cast<size_t>(i);
      const TensorSpec& spec = outputs[at].spec();
      BONFIRE_CHECK(spec.shape == context.local(node.outputs[at].shape, answer.outputs[at]) &&
                        spec.dtype == node.outputs[at].dtype,
                    "output {} of {} is {} on parts, the whole is {} and {}", i, node.name(), to_string(spec),
                    to_string(node.outputs[at]), to_string(answer.outputs[at]));
      values_.set({&node, i}, answer.outputs[at], outputs[at]);
    }
    replaced_.push_back(&node);
  }

  // a + b, of which one is partial sums or both are.
  void add_later(GraphNode& node, const ShardAnswer& answer) {
    GraphValue sums, added;
    auto plus = [&](GraphValue& total, GraphValue more) {
      if (more) total = total ? GraphValue{graph_.add_like(node, *node.op, {total, more}, {}, &node), 0} : more;
    };
    for (size_t i = 0; i < 2; ++i) {
      const GraphValue local = values_.as(node.inputs[i], answer.inputs[i], &node, node);
      plus(answer.inputs[i].is_partial() ? sums : added, local);
      if (answer.inputs[i].is_partial()) plus(added, values_.added_later(node.inputs[i]));
    }
    values_.set({&node, 0}, Sharding::partial(), sums, added);
    replaced_.push_back(&node);
  }

  // What the program holds, and new values of variables.
  void hand_out() {
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const GraphValue value = graph_.outputs[i];
      if (!values_.is_as_traced(value)) graph_.set_output(i, values_.as_whole(value, nullptr, *value.node));
    }
    for (size_t i = 0; i < graph_.assignments.size(); ++i) {
      const GraphValue value = graph_.assignments[i].value;
      if (!values_.is_as_traced(value)) graph_.set_assigned(i, values_.as_whole(value, nullptr, *value.node));
    }
  }

  const Op &whole_of_slice_ = find_op("whole_of_slice"), &slice_of_whole_ = find_op("slice_of_whole");
  Graph& graph_;
  int64_t parts_, place_;
  ShardValues values_;
  std::unordered_map<const GraphNode*, Sharding> wanted_;  // of output 0
  std::vector<GraphNode*> replaced_;
};

class Shard final : public Pass {
 public:
  std::string_view name() const override { return "shard"; }

  void run(Graph& graph, const Options&) const override {
    const Mesh& mesh = StepContext::current().mesh;
    if (mesh.size(Axis::tensor) > 1) Walk(graph, mesh).run();
  }
};

}  // namespace

std::unique_ptr<Pass> shard() { return std::make_unique<Shard>(); }

std::vector<Gathered> gathered_in(const Graph& graph) {
  static const Op& all_gather = find_op("all_gather");
  std::vector<Gathered> found;
  for (const GraphNode& node : graph.nodes()) {
    if (node.op != &all_gather || !node.attributes.has("reader") || node.attributes.integer("reader") < 0) continue;
    found.push_back({op_of_id(static_cast<int>(node.attributes.integer("reader"))).name, node.path,
                     static_cast<int64_t>(node.outputs[0].bytes())});
  }
  return found;
}

}  // namespace bonfire::passes
