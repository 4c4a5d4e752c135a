// Passes make nodes of an op only where the device has a kernel for it, whatever the device is.
#include <gtest/gtest.h>

#include "bonfire/kernel/kernel.h"
#include "bonfire/passes/fuse_cast_sum.h"
#include "bonfire/passes/fuse_embedding_add.h"
#include "bonfire/passes/fuse_linear_cross_entropy.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::kernels_of_devices_test {
namespace {

GraphValue gpu_feed(Graph& graph, const Shape& shape, DType dtype = DType::f32) {
  return feed(graph, shape, dtype, kGpu);
}

// Whether nodes of `op` are made of the graph before and after GPUs have a kernel for it.
void expect_fused_once_there_is_a_kernel(std::string_view op, const Pass& pass, void (*make)(Graph&)) {
  const bool had_one = has_kernel(find_op(op), kGpu);
  Graph before, after;
  make(before);
  pass.run(before, {});
  EXPECT_EQ(count(before, op), had_one ? 1 : 0);
  register_kernel(std::string(op), DeviceType::cuda, [](const KernelRequest&) { return std::vector<Candidate>(); });
  make(after);
  pass.run(after, {});
  verify(after, pass.name());
  EXPECT_EQ(count(after, op), 1);
}

TEST(KernelsOfDevices, DecideWhetherASumReadsBf16) {
  expect_fused_once_there_is_a_kernel("sum_as_f32", *fuse_cast_sum(), [](Graph& graph) {
    GraphValue wide = apply(graph, "cast", {gpu_feed(graph, {8, 5}, DType::bf16)}, {{"dtype", DType::f32}});
    graph.set_outputs({apply(graph, "sum", {wide}, {{"axes", Shape{0}}, {"keepdim", 0}})});
  });
}

TEST(KernelsOfDevices, DecideWhetherRowsAreAddedToAGradient) {
  expect_fused_once_there_is_a_kernel("embedding_gradient_add", *fuse_embedding_add(), [](Graph& graph) {
    GraphValue rows = apply(graph, "embedding_gradient", {gpu_feed(graph, {3, 4}), gpu_feed(graph, {3}, DType::i64)},
                            {{"rows", 9}, {"padding_index", -1}});
    graph.set_outputs({apply(graph, "add", {rows, gpu_feed(graph, {9, 4})})});
  });
}

TEST(KernelsOfDevices, DecideWhetherALayerAndItsLossAreOneNode) {
  expect_fused_once_there_is_a_kernel("linear_cross_entropy", *fuse_linear_cross_entropy(), [](Graph& graph) {
    const Attributes of_loss{{"label_smoothing", 0.0}, {"ignore_index", -100}, {"reduction", 1}};
    GraphValue x = gpu_feed(graph, {1024, 16}), weight = gpu_feed(graph, {4096, 16});
    GraphValue target = gpu_feed(graph, {1024}, DType::i64), dloss = gpu_feed(graph, {});
    GraphValue logits = apply(graph, "matmul", {x, weight}, {{"transpose_a", 0}, {"transpose_b", 1}});
    GraphValue loss = apply(graph, "cross_entropy", {logits, target}, of_loss);
    GraphValue dlogits =
        apply(graph, "cross_entropy_gradient", {dloss, logits, target, {loss.node, 1}, {loss.node, 2}}, of_loss);
    graph.set_outputs({loss, apply(graph, "matmul", {dlogits, weight}, {{"transpose_a", 0}, {"transpose_b", 0}}),
                       apply(graph, "matmul", {dlogits, x}, {{"transpose_a", 1}, {"transpose_b", 0}})});
  });
}

}  // namespace
}  // namespace bonfire::passes::kernels_of_devices_test
