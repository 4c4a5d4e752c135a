#include "bonfire/passes/look_up_products.h"

#include <optional>

#include "bonfire/kernel/device_costs.h"
#include "bonfire/passes/activation.h"

namespace bonfire::passes {

namespace {

Shape without_last(const Shape& shape) {
  Shape rest;
  for (int i = 0; i + 1 < shape.rank(); ++i) rest.push_back(shape[i]);
  return rest;
}

// A reshape or permute that keeps rows (the last axis) whole.
bool orders_rows(const GraphNode& node) {
  if (node.is_input()) return false;
  if (node.op == &find_op("permute")) {
    const Shape& axes = node.attributes.ints("axes");
    return axes[-1] == axes.rank() - 1;
  }
  if (node.op != &find_op("reshape")) return false;
  const Shape &from = node.inputs[0].spec().shape, &to = node.outputs[0].shape;
  return from.rank() > 0 && to.rank() > 0 && from[-1] == to[-1];
}

// Row numbers in the order that `node` gives to rows, or, for those after it, in the order before.
GraphValue follow(Graph& graph, const GraphNode& node, GraphValue ids, GraphNode* before) {
  if (node.op == &find_op("reshape"))
    return {graph.add(*node.op, {ids}, {{"shape", without_last(node.outputs[0].shape)}}, before), 0};
  return {graph.add(*node.op, {ids}, {{"axes", without_last(node.attributes.ints("axes"))}}, before), 0};
}
GraphValue go_back(Graph& graph, const GraphNode& node, GraphValue ids, GraphNode* before) {
  if (node.op == &find_op("reshape"))
    return {graph.add(*node.op, {ids}, {{"shape", without_last(node.inputs[0].spec().shape)}}, before), 0};
  Shape axes = without_last(node.attributes.ints("axes")), inverse = axes;
  for (int i = 0; i < axes.rank(); ++i) inverse[static_cast<int>(axes[i])] = i;
  return {graph.add(*node.op, {ids}, {{"axes", inverse}}, before), 0};
}

// Products of narrow rows take no longer than adding them up.
bool pays(int64_t table_rows, int64_t rows, int64_t columns) { return 2 * table_rows <= rows && columns >= 32; }

// A matrix whose rows were looked up in a table.
class Lookup {
 public:
  static std::optional<Lookup> of(const GraphValue& matrix) {
    Lookup found;
    const GraphNode* node = matrix.node;
    for (; orders_rows(*node); node = node->inputs[0].node) found.order_.push_back(node);
    if (node->is_input() || node->op != &find_op("embedding") || matrix.spec().shape.rank() != 2) return {};
    found.embedding_ = node;
    const Shape &table = found.table().spec().shape, &rows = matrix.spec().shape;
    if (!pays(table[0], rows[0], rows[1])) return {};
    return found;
  }

  GraphValue table() const { return embedding_->inputs[0]; }
  GraphValue ids(Graph& graph, GraphNode* before) const {  // [rows]
    GraphValue ids = embedding_->inputs[1];
    for (size_t i = order_.size(); i-- > 0;) ids = follow(graph, *order_[i], ids, before);
    return ids;
  }

 private:
  const GraphNode* embedding_ = nullptr;
  std::vector<const GraphNode*> order_;  // from the matrix back to the embedding
};

class LookUpProducts final : public Pass {
 public:
  std::string_view name() const override { return "look_up_products"; }

  void run(Graph& graph, const Options&) const override {
    const Op &matmul = find_op("matmul"), &gradient = find_op("embedding_gradient");
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      if (node->is_input() || !costs_of(node->device()).products_are_dear) continue;
      if (node->op == &matmul && is_matrix_product(*node)) {
        if (!look_up_product(graph, *node)) multiply_sums(graph, *node);
      } else if (node->op == &gradient) {
        add_up_first(graph, *node);
      }
    }
  }

 private:
  static bool is_matrix_product(const GraphNode& node) {
    const DType type = node.outputs[0].dtype;
    return (type == DType::f32 || type == DType::f64) && node.inputs[0].spec().shape.rank() == 2 &&
           node.inputs[1].spec().shape.rank() == 2;
  }

  // The sums of the rows of each id.
  static GraphValue sums(Graph& graph, GraphValue rows, GraphValue ids, int64_t table_rows, const GraphNode& like,
                         GraphNode* before) {
    return {graph.add_like(like, find_op("embedding_gradient"), {rows, ids},
                           {{"rows", table_rows}, {"padding_index", int64_t{-1}}}, before),
            0};
  }

  // table[ids] w (+ bias) → (table w (+ bias))[ids]
  static bool look_up_product(Graph& graph, GraphNode& product) {
    std::optional<Lookup> lookup = Lookup::of(product.inputs[0]);
    if (!lookup || product.attributes.flag("transpose_a")) return false;
    GraphNode* small =
        graph.add_like(product, *product.op, {lookup->table(), product.inputs[1]}, product.attributes, &product);
    GraphNode *last = &product, *sum = only_user(graph, {&product, 0});
    if (sum != nullptr && is_addition(*sum) && sum->inputs[0].node == &product && adds_a_row(*sum)) {
      last = sum;
      small = graph.add_like(*sum, *sum->op, {{small, 0}, sum->inputs[1]}, sum->attributes, sum);
    }
    GraphNode* rows = graph.add_like(*last, find_op("embedding"), {{small, 0}, lookup->ids(graph, last)},
                                     {{"padding_index", int64_t{-1}}}, last);
    graph.replace({last, 0}, {rows, 0});
    return true;
  }

  static bool adds_a_row(const GraphNode& sum) {
    const TensorSpec& bias = sum.inputs[1].spec();
    return bias.shape.rank() == 1 && bias.dtype == sum.outputs[0].dtype && sum.outputs[0] == sum.inputs[0].spec();
  }

  // dyᵀ table[ids] → (sums of dy by id)ᵀ table
  static void multiply_sums(Graph& graph, GraphNode& product) {
    std::optional<Lookup> lookup = Lookup::of(product.inputs[1]);
    if (!lookup || !product.attributes.flag("transpose_a") || product.attributes.flag("transpose_b")) return;
    const GraphValue table = lookup->table();
    GraphValue dy =
        sums(graph, product.inputs[0], lookup->ids(graph, &product), table.spec().shape[0], product, &product);
    GraphNode* small = graph.add_like(product, *product.op, {dy, table}, product.attributes, &product);
    graph.replace({&product, 0}, {small, 0});
  }

  // sums of (dy w) by id → (sums of dy by id) w
  static void add_up_first(Graph& graph, GraphNode& gradient) {
    const int64_t table_rows = gradient.attributes.integer("rows");
    if (gradient.attributes.integer("padding_index") >= 0) return;
    std::vector<const GraphNode*> order;
    GraphNode *user = &gradient, *node = gradient.inputs[0].node;
    for (; graph.only_user({node, 0}, user) && orders_rows(*node); node = node->inputs[0].node) {
      order.push_back(node);
      user = node;
    }
    if (node->is_input() || node->op != &find_op("matmul") || !graph.only_user({node, 0}, user) ||
        !is_matrix_product(*node) || node->attributes.flag("transpose_a") ||
        !pays(table_rows, node->outputs[0].shape[0], node->outputs[0].shape[1]))
      return;
    GraphValue ids = gradient.inputs[1];
    for (const GraphNode* each : order) ids = go_back(graph, *each, ids, &gradient);
    GraphValue dy = sums(graph, node->inputs[0], ids, table_rows, gradient, &gradient);
    GraphNode* small = graph.add_like(*node, *node->op, {dy, node->inputs[1]}, node->attributes, &gradient);
    graph.replace({&gradient, 0}, {small, 0});
  }
};

}  // namespace

std::unique_ptr<Pass> look_up_products() { return std::make_unique<LookUpProducts>(); }

}  // namespace bonfire::passes
