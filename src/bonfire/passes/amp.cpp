#include "bonfire/passes/amp.h"

#include <map>

#include "bonfire/base/error.h"

namespace bonfire::passes {

namespace {

// Rewrites the graph in order: each node's inputs are cast to what its rule wants, then its outputs follow from its
// shape rule. Gradient ops are ops like any other.
class Rewrite {
 public:
  Rewrite(Graph& graph, DType low) : graph_(graph), low_(low), cast_(find_op("cast")) {}

  void run() {
    std::vector<TensorSpec> outputs, assigned;
    for (const GraphValue& value : graph_.outputs) outputs.push_back(value.spec());
    for (const GraphAssignment& assignment : graph_.assignments) assigned.push_back(assignment.value.spec());
    for (GraphNode& node : graph_.nodes())
      if (!node.is_input()) treat(node);
    for (size_t i = 0; i < outputs.size(); ++i) graph_.set_output(i, as(graph_.outputs[i], outputs[i].dtype, nullptr));
    for (size_t i = 0; i < assigned.size(); ++i)
      graph_.set_assigned(i, as(graph_.assignments[i].value, assigned[i].dtype, nullptr));
  }

 private:
  void treat(GraphNode& node) {
    switch (node.op->amp_of == nullptr ? node.op->amp : node.op->amp_of(node.attributes)) {
      case AmpRule::low: cast_floats(node, DType::f32, low_); break;
      case AmpRule::full: cast_floats(node, low_, DType::f32); break;
      case AmpRule::follow:
        if (node.op->has(Trait::elementwise)) lower_small_operands(node);
        break;
    }
    if (!infer(node)) {  // an op that wants its inputs alike
      cast_floats(node, low_, DType::f32);
      BONFIRE_CHECK(infer(node), "amp cannot give [{}] inputs that it takes", node.name());
    }
  }

  // A bias or a scale that is broadcast over a low tensor must not widen it.
  void lower_small_operands(GraphNode& node) {
    const Shape shape = node.outputs[0].shape;
    bool low = false, wide = false;
    for (const GraphValue& input : node.inputs) {
      if (!(input.spec().shape == shape)) continue;
      low |= input.spec().dtype == low_;
      wide |= input.spec().dtype == DType::f32;
    }
    if (!low || wide) return;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i].spec().dtype == DType::f32 && node.inputs[i].spec().shape.rank() > 0)
        graph_.set_input(&node, i, as(node.inputs[i], low_, &node));
  }

  void cast_floats(GraphNode& node, DType from, DType to) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      bool keeps = i < 32 && (node.op->amp_keeps >> i & 1U) != 0;
      if (!keeps && node.inputs[i].spec().dtype == from) graph_.set_input(&node, i, as(node.inputs[i], to, &node));
    }
  }

  bool infer(GraphNode& node) {
    std::vector<const TensorSpec*> specs;
    for (const GraphValue& input : node.inputs) specs.push_back(&input.spec());
    try {
      OutputSpecs outputs = node.op->infer({*node.op, specs, node.attributes});
      node.outputs.assign(outputs.begin(), outputs.end());
      return true;
    } catch (const ShapeError&) {
      return false;
    }
  }

  GraphValue as(const GraphValue& value, DType dtype, GraphNode* before) {
    if (value.spec().dtype == dtype) return value;
    // Back to what it was cast from: the original is better than a second cast.
    if (value.node->op == &cast_ && value.node->inputs[0].spec().dtype == dtype &&
        made_.contains({value.node, 0, low_}))
      return value.node->inputs[0];
    GraphValue& made = casts_[{value.node, value.index, dtype}];
    if (!made) {
      GraphNode* node = graph_.add(cast_, {value}, {{"dtype", dtype}}, before);
      node->path = value.node->path;
      node->recomputed_parts = value.node->recomputed_parts;
      made = {node, 0};
      made_[{node, 0, dtype}] = true;
    }
    return made;
  }

  using Key = std::tuple<const GraphNode*, int, DType>;
  Graph& graph_;
  DType low_;
  const Op& cast_;
  std::map<Key, GraphValue> casts_;
  std::map<Key, bool> made_;  // casts that this pass put in
};

class Amp final : public Pass {
 public:
  std::string_view name() const override { return "amp"; }
  void run(Graph& graph, const Options& options) const override {
    if (options.use_amp) Rewrite(graph, options.amp_dtype).run();
  }
};

}  // namespace

std::unique_ptr<Pass> amp() { return std::make_unique<Amp>(); }

}  // namespace bonfire::passes
