// Every candidate of the convolutions, matrix products and recurrences, forced in turn, holds the rows of the op table:
// in f32 outputs and gradients are those of f64, and in bf16 those of f32.

#include <gtest/gtest.h>

#include <set>

#include "bonfire/kernel/forced_kernel.h"
#include "bonfire/ops/convolution.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/ops/row_checks.h"

namespace bonfire::op_test::forced_kernels_test {
namespace {

OpCase convolution_row(const std::string& name, const Shape& x, const Shape& weight, const Conv2dOptions& options) {
  return {.name = "conv2d/" + name,
          .inputs = {floats(x), floats(weight), floats({weight[0]})},
          .call = [options](const Inputs& in) { return conv2d(in[0], in[1], in[2], options); }};
}

OpCase product_row(const std::string& name, const Shape& a, const Shape& b, MatmulOptions options) {
  return {.name = "matmul/" + name, .inputs = {floats(a), floats(b)}, .call = [options](const Inputs& in) {
            return matmul(in[0], in[1], options);
          }};
}

// Large enough for candidates that want many channels, whole tiles or whole blocks, and not quite multiples of them.
std::vector<OpCase> larger_rows() {
  return {
      convolution_row("3x3", {2, 32, 13, 14}, {48, 32, 3, 3}, {.padding = {1, 1}}),
      convolution_row("3x3_few_channels", {3, 5, 9, 8}, {20, 5, 3, 3}, {.padding = {1, 1}}),
      convolution_row("3x3_no_padding", {2, 16, 12, 10}, {16, 16, 3, 3}, {}),
      convolution_row("3x3_stride_2", {2, 32, 13, 14}, {16, 32, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}),
      convolution_row("5x5", {2, 20, 12, 11}, {20, 20, 5, 5}, {}),
      convolution_row("1x1", {2, 64, 7, 7}, {32, 64, 1, 1}, {}),
      convolution_row("1x1_stride_2", {2, 32, 8, 8}, {64, 32, 1, 1}, {.stride = {2, 2}}),
      convolution_row("one_channel", {2, 1, 14, 14}, {32, 1, 5, 5}, {.padding = {2, 2}}),
      convolution_row("7x7_stem", {1, 3, 20, 20}, {16, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}),
      convolution_row("depthwise", {2, 32, 9, 9}, {32, 1, 3, 3}, {.padding = {1, 1}, .groups = 32}),
      product_row("large", {96, 142}, {142, 80}, {}),
      product_row("large_transposed", {142, 96}, {80, 142}, {.transpose_a = true, .transpose_b = true}),
      product_row("large_batch", {3, 40, 64}, {3, 48, 64}, {.transpose_b = true}),
  };
}

std::vector<OpCase> rows_of(const std::set<std::string>& ops) {
  std::vector<OpCase> rows = larger_rows();
  for (const OpCase& row : op_cases()) rows.push_back(row);
  std::erase_if(rows, [&](const OpCase& row) { return !ops.contains(op_of(row.name)); });
  return rows;
}

struct Family {
  std::set<std::string> rows;   // of the table
  std::set<std::string> nodes;  // what plans of these rows contain
};

// Every candidate that a plan of the row could have taken.
std::set<std::string> candidates_of(const OpCase& row, const std::set<std::string>& nodes) {
  runtime::clear_plan_cache();  // candidates make themselves known when a plan is compiled
  forget_offered_kernels();
  for (DType dtype : {DType::f32, DType::bf16})
    if (dtype == DType::f32 || row.runs_in_bf16)
      for (const Tensor& result : outputs_and_gradients(row, make_inputs(row, dtype))) result.to_vector<double>();
  std::set<std::string> names;
  for (const std::string& node : nodes)
    for (const std::string& name : offered_kernels(node)) names.insert(name);
  return names;
}

const Family kConvolutions = {{"conv2d", "conv2d_bias_act"},
                              {"conv2d", "conv2d_bias_act", "conv2d_input_gradient", "conv2d_weight_gradient"}};
const Family kProducts = {{"matmul", "linear", "matmul_bias_act"}, {"matmul", "matmul_bias_act"}};

void check_family(const Family& family) {
  for (const OpCase& row : rows_of(family.rows)) {
    SCOPED_TRACE(row.name);
    std::vector<Tensor> expected = outputs_and_gradients(row, make_inputs(row, DType::f64));
    for (const std::string& name : candidates_of(row, family.nodes)) {
      SCOPED_TRACE(name);
      ForcedKernel forced(name);
      expect_near(outputs_and_gradients(row, make_inputs(row, DType::f32)), expected, 1e-4, "f32");
      if (row.runs_in_bf16) check_bf16(row);
    }
  }
}

TEST(ForcedKernels, OfConvolutionHoldTheTable) { check_family(kConvolutions); }

TEST(ForcedKernels, OfMatmulHoldTheTable) { check_family(kProducts); }

// They are far slower than anything of ours.
TEST(ForcedKernels, AreNoReferenceKernelsOfOneDnn) {
  for (const Family& family : {kConvolutions, kProducts})
    for (const OpCase& row : rows_of(family.rows))
      for (const std::string& name : candidates_of(row, family.nodes))
        EXPECT_FALSE(name.starts_with("onednn:") && name.find("ref") != std::string::npos) << row.name << ": " << name;
}

TEST(ForcedKernels, OfLstmHoldTheTable) { check_family({{"lstm"}, {"lstm_layer", "lstm_layer_gradient"}}); }

// The candidates that the plans compiled by `body` chose for nodes of this op.
std::set<std::string> chosen_for(const std::string& op, const std::function<void()>& body) {
  runtime::clear_plan_cache();
  body();
  std::set<std::string> names;
  for (const auto& plan : runtime::cached_plans())
    for (const runtime::PlanNote& note : plan->notes)
      if (note.node == op) names.insert(note.candidate);
  return names;
}

TEST(ForcedKernels, AreWhatThePlanUsesAndOnlyMeanwhile) {
  OpCase row = convolution_row("3x3", {2, 8, 8, 8}, {8, 8, 3, 3}, {.padding = {1, 1}});
  auto run = [&] { call(row, make_inputs(row, DType::f32))[0].to_vector<double>(); };
  std::set<std::string> free = chosen_for("conv2d_bias_act", run);
  for (const std::string name : {"implicit_gemm:nchw", "implicit_gemm:nhwc"}) {
    std::set<std::string> forced = chosen_for("conv2d_bias_act", [&] {
      run();  // a plan made freely, of the same trace
      ForcedKernel forced(name);
      run();
    });
    std::set<std::string> both = free;
    both.insert(name);
    EXPECT_EQ(forced, both);
  }
  EXPECT_EQ(chosen_for("conv2d_bias_act", run), free);
}

}  // namespace
}  // namespace bonfire::op_test::forced_kernels_test
