#include "bonfire/passes/widen_where_read.h"

namespace bonfire::passes {
namespace {

class WidenWhereRead final : public Pass {
 public:
  std::string_view name() const override { return "widen_where_read"; }

  void run(Graph& graph, const Options&) const override {
    std::vector<GraphNode*> widening;
    for (GraphNode& node : graph.nodes())
      if (widens(node)) widening.push_back(&node);
    for (GraphNode* node : widening) make_for_readers(graph, *node);
  }

 private:
  // In place of the reader: of its module and phase.
  static void make_for_readers(Graph& graph, GraphNode& cast) {
    const GraphValue value{&cast, 0};
    const std::vector<GraphNode*> readers = graph.users(value);
    for (GraphNode* reader : readers)
      for (size_t slot = 0; slot < reader->inputs.size(); ++slot)
        if (reader->inputs[slot] == value)
          graph.set_input(reader, slot,
                          {graph.add_like(*reader, *cast.op, {cast.inputs[0]}, cast.attributes, reader), 0});
    if (graph.graph_uses(value) == 0) graph.erase(&cast);
  }
};

}  // namespace

bool widens(const GraphNode& node) {
  static const Op& cast = find_op("cast");
  if (node.op != &cast) return false;
  const DType from = node.inputs[0].spec().dtype, to = node.outputs[0].dtype;
  return is_floating(from) && is_floating(to) && size_of(from) < size_of(to);
}

std::unique_ptr<Pass> widen_where_read() { return std::make_unique<WidenWhereRead>(); }

}  // namespace bonfire::passes
