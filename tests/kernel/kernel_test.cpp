#include "bonfire/kernel/kernel.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/kernel/without_cuda.h"

namespace bonfire::kernel_test {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }

// A node on a GPU, which need not be there: only a plan that runs would ask for it.
GraphNode* node_on_gpu(Graph& graph, const Op& op) {
  GraphNode* x = graph.add_input(LeafKind::feed, {{2, 3}, DType::f32, kGpu});
  GraphNode* node = graph.add(op, {{x, 0}}, {});
  node->path = "encoder.layer0";
  return node;
}

std::string error_on_gpu(const Op& op) {
  Graph graph;
  const Layout arriving[] = {{}};
  try {
    candidates_for({*node_on_gpu(graph, op), arriving});
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HasKernel, IsAnsweredByOpAndDevice) {
  EXPECT_TRUE(has_kernel(find_op("matmul"), {}));
  EXPECT_TRUE(has_kernel(find_op("add"), {}));      // by what serves every elementwise op
  EXPECT_FALSE(has_kernel(find_op("detach"), {}));  // a view
  EXPECT_TRUE(has_kernel(find_op("all_reduce"), kGpu));
  EXPECT_FALSE(has_kernel({.name = "nowhere"}, {}));
  EXPECT_FALSE(has_kernel({.name = "nowhere"}, kGpu));
}

TEST(Candidates, OfAnOpThatGpusDoNotHaveYetSaySo) {
  const std::string name(ops_without_cuda_kernel().front());
  EXPECT_EQ(error_on_gpu({.name = name, .infer = same_spec}),
            "[" + name +
                "] there is no kernel on cuda:0 for inputs (f32 [2, 3] cuda:0) in module encoder.layer0; GPUs do not "
                "have this op yet: run it with place=cpu");
}

TEST(Candidates, OfOtherOpsSayOnlyThatThereAreNone) {
  EXPECT_EQ(error_on_gpu({.name = "nowhere", .infer = same_spec}),
            "[nowhere] there is no kernel on cuda:0 for inputs (f32 [2, 3] cuda:0) in module encoder.layer0");
}

}  // namespace
}  // namespace bonfire::kernel_test
