#include "bonfire/passes/fuse_cast_sum.h"

#include "bonfire/kernel/kernel.h"

namespace bonfire::passes {

namespace {

class FuseCastSum final : public Pass {
 public:
  std::string_view name() const override { return "fuse_cast_sum"; }

  void run(Graph& graph, const Options&) const override {
    const Op &sum = find_op("sum"), &cast = find_op("cast"), &sum_as_f32 = find_op("sum_as_f32");
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      if (node->op != &sum || !has_kernel(sum_as_f32, node->device())) continue;
      const GraphNode* source = node->inputs[0].node;
      if (source->op != &cast || node->outputs[0].dtype != DType::f32) continue;
      if (source->inputs[0].spec().dtype != DType::bf16) continue;
      GraphNode* fused = graph.add_like(*node, sum_as_f32, {source->inputs[0]}, node->attributes, node);
      graph.replace({node, 0}, {fused, 0});
      graph.erase(node);
    }
  }
};

}  // namespace

std::unique_ptr<Pass> fuse_cast_sum() { return std::make_unique<FuseCastSum>(); }

}  // namespace bonfire::passes
