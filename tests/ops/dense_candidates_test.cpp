// A backend may offer several kernels for a node; here every one of them is run by itself, in the layouts it asks for,
// on memory full of NaN, and must give what the first one gives.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/simd/simd.h"
#include "bonfire/base/random.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/ops/elementwise_functions.h"
#include "tests/ops/op_case.h"

namespace bonfire::dense_candidates_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kGarbage{0xFF};  // NaN in every floating type

Bytes random_bytes(const TensorSpec& spec, uint64_t salt) {
  // Positive, so that an operand may stand for a variance.
  Tensor tensor =
      op_test::make_tensor(op_test::draw(op_test::floats(spec.shape, 0.1, 1), salt), spec.shape, spec.dtype);
  Bytes bytes(spec.bytes());
  tensor.copy_to_host(bytes);
  return bytes;
}

std::vector<double> numbers(const Bytes& bytes, const TensorSpec& spec) {
  return Tensor::from_bytes(bytes, spec).to_vector<double>();
}

// Memory as plans give it to kernels: aligned, and full of garbage.
std::unique_ptr<Storage> garbage(size_t bytes) {
  auto storage = std::make_unique<Storage>(Device{}, std::max<size_t>(1, bytes));
  std::memset(storage->data(), static_cast<int>(kGarbage), storage->bytes());
  return storage;
}

// All outputs of the node, row-major.
std::vector<Bytes> run_candidate(const GraphNode& node, const Candidate& candidate, const std::vector<Bytes>& inputs,
                                 ThreadPool& threads) {
  std::vector<std::unique_ptr<Storage>> storages;
  std::vector<void*> in, out;
  auto add = [&](const TensorSpec& spec, const Layout& layout) {
    return storages.emplace_back(garbage(bytes_of(spec.shape, spec.dtype, layout)))->data();
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = node.inputs[i].spec();
    in.push_back(add(spec, candidate.input_layouts[i]));
    convert_layout(inputs[i].data(), {}, in[i], candidate.input_layouts[i], spec.shape, spec.dtype);
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) out.push_back(add(node.outputs[o], candidate.output_layouts[o]));
  std::unique_ptr<Storage> workspace = garbage(candidate.workspace_bytes);
  candidate.build()->run({in, out, workspace->data(), &threads, nullptr});
  std::vector<Bytes> results;
  for (size_t o = 0; o < out.size(); ++o) {
    results.emplace_back(node.outputs[o].bytes());
    convert_layout(out[o], candidate.output_layouts[o], results[o].data(), {}, node.outputs[o].shape,
                   node.outputs[o].dtype);
  }
  return results;
}

void expect_near(const std::vector<Bytes>& found, const std::vector<Bytes>& expected, const GraphNode& node,
                 const std::string& name) {
  for (size_t o = 0; o < found.size(); ++o) {
    std::vector<double> a = numbers(found[o], node.outputs[o]), b = numbers(expected[o], node.outputs[o]);
    double largest = 1, unit = node.outputs[o].dtype == DType::bf16 ? 1e-2 : 1e-5;
    for (double value : b) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_NEAR(a[i], b[i], unit * largest) << name << ", output " << o << ", element " << i;
  }
}

struct Found {
  std::string candidate;
  std::vector<Bytes> outputs;
};

// What every candidate gives. Operands that are not given are random.
std::vector<Found> run_candidates(const GraphNode& node, std::vector<Bytes> inputs = {}) {
  while (inputs.size() < node.inputs.size())
    inputs.push_back(random_bytes(node.inputs[inputs.size()].spec(), inputs.size()));
  const std::vector<Candidate> candidates = candidates_for({node, std::vector<Layout>(node.inputs.size()), true});
  EXPECT_GE(candidates.size(), 2U) << node.op->name;
  ThreadPool threads(cpu::cpu_threads());
  std::vector<Found> found;
  for (const Candidate& candidate : candidates)
    found.push_back({candidate.name, run_candidate(node, candidate, inputs, threads)});
  return found;
}

const GraphNode& add_node(Graph& graph, const char* op, const std::vector<TensorSpec>& specs,
                          const Attributes& attributes) {
  std::vector<GraphValue> values;
  for (const TensorSpec& spec : specs) values.push_back({graph.add_input(LeafKind::feed, spec), 0});
  return *graph.add(find_op(op), values, attributes);
}

// Runs every candidate, and returns the outputs of the first.
std::vector<Bytes> check_candidates(const char* op, const std::vector<TensorSpec>& specs, const Attributes& attributes,
                                    const std::vector<Bytes>& inputs = {}) {
  Graph graph;
  const GraphNode& node = add_node(graph, op, specs, attributes);
  const std::vector<Found> found = run_candidates(node, inputs);
  const std::vector<Bytes>& expected = found[0].outputs;
  for (size_t o = 0; o < expected.size(); ++o)
    for (double value : numbers(expected[o], node.outputs[o])) EXPECT_TRUE(std::isfinite(value)) << op;
  for (const Found& one : found) expect_near(one.outputs, expected, node, std::string(op) + " " + one.candidate);
  return expected;
}

// Each op of the family in the given type, on shapes that are multiples of nothing.
class DenseCandidates : public ::testing::TestWithParam<DType> {
 protected:
  TensorSpec image(const Shape& shape) const { return {shape, GetParam(), {}}; }
  TensorSpec statistic(int64_t channels) const {
    return {{channels}, GetParam() == DType::f64 ? DType::f64 : DType::f32, {}};
  }
};

Attributes convolution(int64_t groups) {
  return {{"stride", Shape{2, 1}}, {"padding", Shape{1, 2}}, {"dilation", Shape{1, 2}}, {"groups", groups}};
}

TEST_P(DenseCandidates, OfConvolutionAgree) {
  for (int64_t groups : {1, 2, 6}) {
    Shape x{2, 6, 9, 7}, weight{12, 6 / groups, 3, 3}, y{2, 12, 5, 7};
    check_candidates("conv2d", {image(x), image(weight)}, convolution(groups));
    Attributes attributes = convolution(groups);
    attributes.set({"input_size", Shape{9, 7}});
    check_candidates("conv2d_input_gradient", {image(y), image(weight)}, attributes);
    attributes = convolution(groups);
    attributes.set({"kernel_size", Shape{3, 3}});
    check_candidates("conv2d_weight_gradient", {image(y), image(x)}, attributes);
    attributes = convolution(groups);
    attributes.set({"has_bias", 1});
    attributes.set({"has_residual", 1});
    attributes.set({"activation", static_cast<int>(ElementwiseFunction::relu)});
    check_candidates("conv2d_bias_act", {image(x), image(weight), statistic(12), image(y)}, attributes);
  }
}

// With these, all our own algorithms have their turn: Winograd's, the one for few channels, the depthwise one.
class PlainConvolutionCandidates : public DenseCandidates {
 protected:
  void check() const;
};

void PlainConvolutionCandidates::check() const {
  struct Channels {
    int64_t in, out, groups;
  };
  for (const auto& [in, out, groups] : {Channels{18, 12, 1}, Channels{3, 20, 1}, Channels{18, 18, 18}}) {
    Shape x{2, in, 9, 7}, weight{out, in / groups, 3, 3}, y{2, out, 9, 7};
    const Attributes plain{
        {"stride", Shape{1, 1}}, {"padding", Shape{1, 1}}, {"dilation", Shape{1, 1}}, {"groups", groups}};
    check_candidates("conv2d", {image(x), image(weight)}, plain);
    Attributes attributes = plain;
    attributes.set({"input_size", Shape{9, 7}});
    check_candidates("conv2d_input_gradient", {image(y), image(weight)}, attributes);
    attributes = plain;
    attributes.set({"kernel_size", Shape{3, 3}});
    check_candidates("conv2d_weight_gradient", {image(y), image(x)}, attributes);
    for (ElementwiseFunction function : {ElementwiseFunction::relu, ElementwiseFunction::gelu_tanh})
      for (int has_residual : {0, 1}) {
        attributes = plain;
        attributes.set({"has_bias", 1});
        attributes.set({"has_residual", has_residual});
        attributes.set({"activation", static_cast<int>(function)});
        std::vector<TensorSpec> inputs{image(x), image(weight), statistic(out)};
        if (has_residual) inputs.push_back(image(y));
        check_candidates("conv2d_bias_act", inputs, attributes);
      }
  }
}

TEST_P(PlainConvolutionCandidates, Agree) { check(); }

TEST_P(PlainConvolutionCandidates, AgreeWithTheBaselineInstructionSet) {
  cpu::set_instruction_set_for_test(cpu::InstructionSet::generic);
  check();
  cpu::set_instruction_set_for_test(cpu::available_instruction_sets().back());
}

// What a 3 x 3 convolution may be made of.
std::set<std::string> offered_for(const Shape& x, int64_t out_channels, DType dtype) {
  Graph graph;
  const GraphNode& node =
      add_node(graph, "conv2d", {{x, dtype, {}}, {{out_channels, x[1], 3, 3}, dtype, {}}},
               {{"stride", Shape{1, 1}}, {"padding", Shape{1, 1}}, {"dilation", Shape{1, 1}}, {"groups", 1}});
  std::set<std::string> names;
  for (const Candidate& candidate : candidates_for({node, std::vector<Layout>(2)})) names.insert(candidate.name);
  return names;
}

// Winograd's multiplies in f32: a quarter as often, but tiles of bf16 are faster still.
TEST(ConvolutionCandidates, OfBf16HaveWinogradsWhereThereAreNoTiles) {
  for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
    cpu::set_instruction_set_for_test(set);
    std::set<std::string> names = offered_for({2, 18, 9, 7}, 12, DType::bf16);
    for (const char* name : {"winograd2:nhwc", "winograd4:nhwc"})
      EXPECT_EQ(names.contains(name), set != cpu::InstructionSet::amx) << name_of(set);
  }
  cpu::set_instruction_set_for_test(cpu::available_instruction_sets().back());
}

// Timing each takes as long as a step: the first one would be late.
TEST(ConvolutionCandidates, AreThoseThatMayBeTheQuickest) {
  struct Offered {
    Shape x;
    int64_t out_channels;
    bool row_major, small_tiles;
  };
  for (const auto& [x, out_channels, row_major, small_tiles] : {
           Offered{{64, 64, 28, 28}, 64, false, false},
           Offered{{64, 64, 14, 14}, 64, false, true},  // 16 x 16 in tiles of 4 x 4
           Offered{{1, 64, 28, 28}, 64, false, true},   // 49 tiles: weights take the time
           Offered{{64, 3, 28, 28}, 64, true, false},   // nothing for Winograd's
           Offered{{64, 64, 28, 28}, 12, true, false},
       }) {
    std::set<std::string> names = offered_for(x, out_channels, DType::f32);
    EXPECT_TRUE(names.contains("implicit_gemm:nhwc")) << to_string(x);
    EXPECT_EQ(names.contains("implicit_gemm:nchw"), row_major) << to_string(x);
    EXPECT_EQ(names.contains("winograd2:nhwc"), small_tiles) << to_string(x);
    EXPECT_EQ(names.contains("winograd4:nhwc"), x[1] > 3) << to_string(x);
  }
}

TEST_P(DenseCandidates, OfPoolingAgree) {
  Shape x{2, 67, 7, 5}, y{2, 67, 4, 3};
  Attributes window{{"kernel", Shape{3, 3}}, {"stride", Shape{2, 2}}, {"padding", Shape{1, 1}}, {"ceil_mode", 0}};
  check_candidates("max_pool2d", {image(x)}, window);
  Attributes average = window;
  average.set({"count_include_pad", 1});
  check_candidates("avg_pool2d", {image(x)}, average);
  average.set({"input_size", Shape{7, 5}});
  check_candidates("avg_pool2d_gradient", {image(y)}, average);
  check_candidates("adaptive_avg_pool2d", {image(x)}, {{"output_size", Shape{3, 4}}});
  check_candidates("adaptive_avg_pool2d_gradient", {image(y)}, {{"input_size", Shape{7, 5}}});
}

TEST_P(DenseCandidates, OfMaxPoolGradientAgreeOnTies) {
  TensorSpec x = image({2, 67, 7, 5}), y = image({2, 67, 4, 3});
  Attributes window{{"kernel", Shape{3, 3}}, {"stride", Shape{2, 2}}, {"padding", Shape{1, 1}}, {"ceil_mode", 1}};
  // Three distinct values, so that most windows have several maxima.
  Bytes values(x.bytes());
  op_test::make_tensor(op_test::draw(op_test::integers(x.shape, 0, 3), 1), x.shape, x.dtype).copy_to_host(values);
  Bytes pooled = check_candidates("max_pool2d", {x}, window, {values})[0];
  Bytes dx = check_candidates("max_pool2d_gradient", {y, x, y}, window, {random_bytes(y, 2), values, pooled})[0];
  double given = 0, passed_on = 0;
  for (double value : numbers(random_bytes(y, 2), y)) given += value;
  for (double value : numbers(dx, x)) passed_on += value;
  EXPECT_NEAR(passed_on, given, 0.01 * given);
}

// Windows of 2 × 2 of all pairs and triples of numbers that are compared in ways of their own.
TEST_P(DenseCandidates, OfMaxPoolingAgreeOnNaNInfinityAndZero) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const double special[] = {nan, -nan, infinity, -infinity, 0.0, -0.0, 1.5, -1.5};
  const TensorSpec x = image({8, 19, 16, 16}), y = image({8, 19, 8, 8});
  std::vector<double> values;
  for (int64_t i = 0; i < x.shape.count(); ++i)
    values.push_back(special[static_cast<size_t>(8 * uniform_at(3, 1, static_cast<uint64_t>(i)))]);
  Bytes bytes(x.bytes());
  op_test::make_tensor(values, x.shape, x.dtype).copy_to_host(bytes);
  const Attributes window{{"kernel", Shape{2, 2}}, {"stride", Shape{2, 2}}, {"padding", Shape{0, 0}}, {"ceil_mode", 0}};
  Graph graph;
  const GraphNode& forward = add_node(graph, "max_pool2d", {x}, window);
  const GraphNode& backward = add_node(graph, "max_pool2d_gradient", {y, x, y}, window);
  const std::vector<Found> pooled = run_candidates(forward, {bytes});
  const std::vector<Found> gradients = run_candidates(backward, {random_bytes(y, 2), bytes, pooled.back().outputs[0]});
  for (const auto& [found, spec] : {std::pair(pooled, y), std::pair(gradients, x)}) {
    const std::vector<double> expected = numbers(found[0].outputs[0], spec);
    for (const Found& one : found) {
      const std::vector<double> given = numbers(one.outputs[0], spec);
      for (size_t i = 0; i < given.size(); ++i)
        ASSERT_TRUE(given[i] == expected[i] || (std::isnan(given[i]) && std::isnan(expected[i])))
            << one.candidate << ", element " << i << ": " << given[i] << ", expected " << expected[i];
    }
  }
  const std::vector<double> largest = numbers(pooled[0].outputs[0], y);
  EXPECT_GT(std::count_if(largest.begin(), largest.end(), [](double value) { return std::isnan(value); }), 0);
}

TEST_P(DenseCandidates, OfBatchNormAgree) {
  for (int64_t channels : {1, 3, 70}) {
    TensorSpec x = image({3, channels, 5, 9}), s = statistic(channels);
    Attributes eps{{"eps", 1e-5}};
    check_candidates("batch_norm_statistics", {x}, {});
    check_candidates("batch_norm_gradient_sums", {x, x, s, s}, eps);
    Attributes apply = eps;
    apply.set({"count", -1});
    check_candidates("batch_norm_gradient_apply", {x, x, s, s, s, s, s}, apply);
    Attributes normalize = eps;
    normalize.set({"training", 1});
    check_candidates("batch_norm_normalize", {x, s, s, s, s}, normalize);
  }
}

TEST_P(DenseCandidates, OfFusedBatchNormAgree) {
  TensorSpec x = image({3, 70, 5, 9}), s = statistic(70);
  for (ElementwiseFunction function : {ElementwiseFunction::relu, ElementwiseFunction::tanh}) {
    Attributes fused{{"eps", 1e-5}, {"activation", static_cast<int>(function)}, {"has_residual", 1}};
    check_candidates("batch_norm_act", {x, s, s, s, s, x}, fused);
    check_candidates("batch_norm_act_gradient_sums", {x, x, s, s, s, s, x}, fused);
    fused.set({"count", -1});
    check_candidates("batch_norm_act_gradient_apply", {x, x, s, s, s, s, s, s, x}, fused);
    fused.set({"has_residual", 0});
    check_candidates("batch_norm_act_gradient_apply", {x, x, s, s, s, s, s, s}, fused);
  }
}

TEST_P(DenseCandidates, OfSumsAgree) {
  TensorSpec x = image({3, 70, 5, 9});
  for (const Shape& axes : {Shape{0, 2, 3}, Shape{2, 3}, Shape{1}, Shape{0, 1, 2, 3}})
    for (int keepdims : {0, 1}) check_candidates("sum", {x}, {{"axes", axes}, {"keepdim", keepdims}});
}

TEST(ImageCandidates, OfNormalizeImageAgree) {
  TensorSpec statistic{{3}, DType::f32, {}};
  check_candidates("normalize_image", {{{2, 5, 7, 3}, DType::u8, {}}, statistic, statistic},
                   {{"dtype", DType::f32}, {"channels_last", 1}});
  check_candidates("normalize_image", {{{2, 3, 5, 7}, DType::u8, {}}, statistic, statistic},
                   {{"dtype", DType::bf16}, {"channels_last", 0}});
}

std::string type_name(const ::testing::TestParamInfo<DType>& info) { return std::string(name_of(info.param)); }
const auto kTypes = ::testing::Values(DType::f32, DType::f64, DType::bf16);
INSTANTIATE_TEST_SUITE_P(Types, DenseCandidates, kTypes, type_name);
INSTANTIATE_TEST_SUITE_P(Types, PlainConvolutionCandidates, kTypes, type_name);

}  // namespace
}  // namespace bonfire::dense_candidates_test
