// How exact kernels are: every candidate keeps to what it states, and the planner to its bound.

#include "bonfire/runtime/exactness.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bonfire/backend/cpu/simd/simd.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/kernel/forced_kernel.h"
#include "bonfire/ops/convolution.h"
#include "bonfire/ops/creation.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/cuda_device.h"
#include "tests/support/exactness_cases.h"
#include "tests/support/expect_error.h"

namespace bonfire::exactness_test {
namespace {

using exactness::Case;

std::vector<Case> small_cases() {
  std::vector<Case> list;
  auto add = [&](const std::vector<Case>& more) { list.insert(list.end(), more.begin(), more.end()); };
  for (const exactness::Density& density : {exactness::kRelu, exactness::kPooled, exactness::kThin})
    for (const exactness::Layer& layer : {exactness::Layer{"alexnet 32@3 3x3", 17, 32, 3, 48, 3, 1},
                                          exactness::Layer{"alexnet 24@8 5x5", 17, 24, 8, 32, 5, 2},
                                          exactness::Layer{"resnet 32@14 3x3", 8, 32, 14, 32, 3, 1}})
      add(exactness::convolution_cases(layer, density));
  add({exactness::matmul_case("product", 96, 80, 300, false, true), exactness::loss_case("loss", 40, 64, 3000)});
  add(exactness::lstm_cases("lstm", 12, 16, 64));
  add(exactness::attention_cases("attention", 2, 2, 48, 32));
  return list;
}

class Exactness : public ::testing::TestWithParam<cpu::InstructionSet> {
 protected:
  void SetUp() override { cpu::set_instruction_set_for_test(GetParam()); }
  void TearDown() override { cpu::set_instruction_set_for_test(cpu::available_instruction_sets().back()); }
};

// The names of those that were looked at.
std::set<std::string> expect_as_stated(const Case& one, Device device) {
  std::set<std::string> seen;
  const exactness::NodeOf made(one, device);
  for (const runtime::CandidateError& row : runtime::candidate_errors(made.node(), made.inputs())) {
    seen.insert(row.candidate);
    const std::string what = fmt::format("{} {} {}: error {:.1e}", one.op, one.name, row.candidate, row.error);
    EXPECT_LE(row.multiple, row.stated) << what;
    EXPECT_LT(row.error, 3e-6) << what;
    if (row.keeps_zeros) {
      EXPECT_EQ(row.not_zeros, 0) << what;
    }
  }
  return seen;
}

TEST_P(Exactness, EveryCandidateIsAsExactAsItStates) {
  std::set<std::string> seen;
  for (const Case& one : small_cases()) seen.merge(expect_as_stated(one, {}));
  for (const char* name : {"implicit_gemm:nhwc", "winograd2:nhwc", "winograd4:nhwc", "winograd4_noisy:nhwc"})
    EXPECT_TRUE(seen.contains(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, Exactness,
                         ::testing::ValuesIn(cpu::available_instruction_sets().begin(),
                                             cpu::available_instruction_sets().end()),
                         [](const auto& info) { return std::string(cpu::name_of(info.param)); });

TEST(CudaExactness, EveryCandidateIsAsExactAsItStates) {
  const std::optional<Device> gpu = cuda_device();
  if (!gpu) GTEST_SKIP() << "there is no GPU";
  for (const Case& one : small_cases())
    if (one.op.starts_with("conv2d") || one.op == "matmul") {
      EXPECT_FALSE(expect_as_stated(one, *gpu).empty()) << one.op;
    }
}

// Whoever is beyond the bound is there for fast_math alone.
TEST(FastMath, OffersWhatIsBeyondTheBound) {
  size_t beyond = 0;
  for (const Case& one : small_cases()) {
    const exactness::NodeOf made(one);
    const std::vector<Layout> arriving(made.node().inputs.size());
    for (const Candidate& candidate : candidates_for({made.node(), arriving}))
      EXPECT_TRUE(candidate.error <= kMostError && candidate.keeps_zeros) << candidate.name;
    for (const Candidate& candidate : candidates_for({made.node(), arriving, true}))
      beyond += candidate.error > kMostError || !candidate.keeps_zeros ? 1 : 0;
  }
  EXPECT_GT(beyond, 0U);
  EXPECT_LE(kMostError, 16);
}

OutputSpecs infer_same(const InferContext& context) { return {context.input(0)}; }
const Op& rough_op = register_op({.name = "test_rough", .infer = infer_same});
const bool rough_kernel = register_kernel("test_rough", DeviceType::cpu, [](const KernelRequest& request) {
  std::vector<Candidate> list = one_candidate(request, [](const Run&) {});
  list[0].error = 100;
  return list;
});

TEST(FastMath, IsAskedForWhereNothingElseIsThere) {
  ASSERT_TRUE(rough_kernel);
  Graph graph;
  GraphValue input{graph.add_input(LeafKind::feed, {{4}, DType::f32, {}}), 0};
  const GraphNode* node = graph.add(rough_op, {input});
  const std::vector<Layout> arriving(1);
  EXPECT_ERROR(candidates_for({*node, arriving}), DeviceError, "strategy.fast_math: true");
  EXPECT_EQ(candidates_for({*node, arriving, true}).size(), 1U);
}

// Kernels of the plans of a convolution, when those that lose zeros are preferred.
std::string chosen(bool fast_math) {
  ForcedKernel forced("noisy");
  StepContext::current().options.fast_math = fast_math;
  conv2d(ones({4, 16, 12, 12}), ones({16, 16, 3, 3}), {}, {.padding = {1}}).to_vector<float>();
  StepContext::current().options.fast_math = false;
  std::string text;
  for (const auto& plan : runtime::cached_plans()) text += runtime::print_plan(*plan);
  return text;
}

TEST(FastMath, IsPartOfWhatAPlanIsMadeFor) {
  runtime::clear_plan_cache();
  const std::string exact = chosen(false);
  EXPECT_NE(exact.find("conv2d ("), std::string::npos) << exact;
  EXPECT_EQ(exact.find("noisy"), std::string::npos) << exact;
  const std::string both = chosen(true);
  EXPECT_NE(both.find("_noisy:nhwc, error "), std::string::npos) << both;
}

}  // namespace
}  // namespace bonfire::exactness_test
