// Rows for matrix products and convolution.

#include <array>
#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/ops/convolution.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise_functions.h"
#include "bonfire/ops/matmul.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_dense {

namespace {

// ---- references, written out ----

struct MatmulCase {
  int64_t batch = 1, m, n, k;
  bool transpose_a = false, transpose_b = false;
};

Reference matmul_reference(const MatmulCase& c) {
  return [c](const std::vector<Numbers>& in) {
    Numbers y(static_cast<size_t>(c.batch * c.m * c.n));
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t i = 0; i < c.m; ++i)
        for (int64_t j = 0; j < c.n; ++j)
          for (int64_t k = 0; k < c.k; ++k) {
            int64_t at_a = b * c.m * c.k + (c.transpose_a ? k * c.m + i : i * c.k + k);
            int64_t at_b = b * c.n * c.k + (c.transpose_b ? j * c.k + k : k * c.n + j);
            y[(b * c.m + i) * c.n + j] += in[0][at_a] * in[1][at_b];
          }
    return y;
  };
}

struct ConvCase {
  Shape x, weight;  // [N, C, H, W], [O, C / groups, KH, KW]
  Conv2dOptions options = {};

  int64_t out(int axis) const {
    return (x[axis + 2] + 2 * options.padding[axis] - options.dilation[axis] * (weight[axis + 2] - 1) - 1) /
               options.stride[axis] +
           1;
  }
  Shape y() const { return {x[0], weight[0], out(0), out(1)}; }
};

double window_sum(const ConvCase& c, const Numbers& x, const Numbers& weight, int64_t n, int64_t o, int64_t oh,
                  int64_t ow) {
  int64_t per_group = c.weight[1], group = o / (c.weight[0] / c.options.groups);
  double sum = 0;
  for (int64_t i = 0; i < per_group; ++i)
    for (int64_t kh = 0; kh < c.weight[2]; ++kh)
      for (int64_t kw = 0; kw < c.weight[3]; ++kw) {
        int64_t h = oh * c.options.stride[0] - c.options.padding[0] + kh * c.options.dilation[0];
        int64_t w = ow * c.options.stride[1] - c.options.padding[1] + kw * c.options.dilation[1];
        if (h < 0 || h >= c.x[2] || w < 0 || w >= c.x[3]) continue;
        sum += x[((n * c.x[1] + group * per_group + i) * c.x[2] + h) * c.x[3] + w] *
               weight[((o * per_group + i) * c.weight[2] + kh) * c.weight[3] + kw];
      }
  return sum;
}

Reference conv_reference(const ConvCase& c) {
  return [c](const std::vector<Numbers>& in) {
    Numbers y;
    for (int64_t n = 0; n < c.x[0]; ++n)
      for (int64_t o = 0; o < c.weight[0]; ++o)
        for (int64_t oh = 0; oh < c.out(0); ++oh)
          for (int64_t ow = 0; ow < c.out(1); ++ow)
            y.push_back(window_sum(c, in[0], in[1], n, o, oh, ow) + (in.size() > 2 ? in[2][o] : 0.0));
    return y;
  };
}

double activated(ElementwiseFunction function, double z) {
  using F = ElementwiseFunction;
  switch (function) {
    case F::relu: return std::max(z, 0.0);
    case F::gelu: return z * 0.5 * std::erfc(-z / std::sqrt(2.0));
    case F::gelu_tanh: return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case F::tanh: return std::tanh(z);
    case F::sigmoid: return 1 / (1 + std::exp(-z));
    default: return z / (1 + std::exp(-z));
  }
}

constexpr std::array kActivations = {ElementwiseFunction::relu,      ElementwiseFunction::gelu,
                                     ElementwiseFunction::gelu_tanh, ElementwiseFunction::tanh,
                                     ElementwiseFunction::sigmoid,   ElementwiseFunction::silu};
constexpr std::array kActivationNames = {"relu", "gelu", "gelu_tanh", "tanh", "sigmoid", "silu"};

// ---- matrix products ----

OpCase matmul_row(const std::string& name, Shape a, Shape b, MatmulOptions options, Shape y,
                  Reference reference = nullptr) {
  return {.name = "matmul/" + name,
          .inputs = {floats(a), floats(b)},
          .call = [options](const Inputs& x) { return matmul(x[0], x[1], options); },
          .shapes = {y},
          .reference = std::move(reference),
          .twice = a.count() * b.count() < 2000};
}

const bool matmul_rows = add_op_cases({
    matmul_row("plain", {5, 7}, {7, 3}, {}, {5, 3}, matmul_reference({1, 5, 3, 7})),
    matmul_row("transpose_a", {7, 5}, {7, 3}, {.transpose_a = true}, {5, 3},
               matmul_reference({1, 5, 3, 7, true, false})),
    matmul_row("transpose_b", {5, 7}, {3, 7}, {.transpose_b = true}, {5, 3},
               matmul_reference({1, 5, 3, 7, false, true})),
    matmul_row("transpose_both", {7, 5}, {3, 7}, {.transpose_a = true, .transpose_b = true}, {5, 3},
               matmul_reference({1, 5, 3, 7, true, true})),
    matmul_row("one_number", {1, 1}, {1, 1}, {}, {1, 1}, matmul_reference({1, 1, 1, 1})),
    matmul_row("beyond_the_vector_width", {33, 65}, {65, 17}, {}, {33, 17}, matmul_reference({1, 33, 17, 65})),
    matmul_row("batch", {2, 3, 4, 5}, {2, 3, 5, 2}, {}, {2, 3, 4, 2}, matmul_reference({6, 4, 2, 5})),
    matmul_row("batch_transposed", {3, 5, 4}, {3, 2, 5}, {.transpose_a = true, .transpose_b = true}, {3, 4, 2},
               matmul_reference({3, 4, 2, 5, true, true})),
    matmul_row("broadcast_both", {2, 1, 4, 5}, {3, 5, 2}, {}, {2, 3, 4, 2}),
    matmul_row("broadcast_a", {4, 5}, {3, 5, 2}, {}, {3, 4, 2}),
    matmul_row("broadcast_transposed_a", {2, 5, 4}, {5, 3}, {.transpose_a = true}, {2, 4, 3}),
    matmul_row("folded_rows", {2, 3, 5}, {5, 4}, {}, {2, 3, 4}, matmul_reference({1, 6, 4, 5})),
    matmul_row("dot", {7}, {7}, {}, {}, matmul_reference({1, 1, 1, 7})),
    matmul_row("vector_matrix", {7}, {7, 3}, {}, {3}, matmul_reference({1, 1, 3, 7})),
    matmul_row("batch_vector", {2, 5, 7}, {7}, {}, {2, 5}, matmul_reference({1, 10, 1, 7})),
    matmul_row("no_rows", {0, 3}, {3, 4}, {}, {0, 4}),
    matmul_row("no_depth", {2, 0}, {0, 3}, {}, {2, 3}, [](const auto&) { return Numbers(6); }),
    matmul_row("empty_batch", {0, 2, 3}, {0, 3, 4}, {}, {0, 2, 4}),
});

Numbers add_to_rows(Numbers y, const Numbers& bias) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
  return y;
}

OpCase linear_row(const std::string& name, Shape x, bool bias, Shape y) {
  OpCase row{.name = "linear/" + name,
             .inputs = {floats(x), floats({3, 7})},
             .call = [](const Inputs& in) { return linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor()); },
             .shapes = {y},
             .twice = true};
  if (bias) row.inputs.push_back(floats({3}));
  row.reference = [rows = x.count() / 7](const std::vector<Numbers>& in) {
    Numbers y = matmul_reference({1, rows, 3, 7, false, true})({in[0], in[1]});
    return in.size() > 2 ? add_to_rows(y, in[2]) : y;
  };
  return row;
}

const bool linear_rows = add_op_cases({
    linear_row("plain", {5, 7}, false, {5, 3}),
    linear_row("bias", {5, 7}, true, {5, 3}),
    linear_row("sequence", {2, 4, 7}, true, {2, 4, 3}),
    linear_row("one_row", {7}, true, {3}),
    linear_row("empty_batch", {0, 7}, true, {0, 3}),
});

std::vector<OpCase> fused_matmul_rows() {
  std::vector<OpCase> rows;
  for (size_t i = 0; i < kActivations.size(); ++i) {
    auto call = [function = kActivations[i]](const Inputs& x) {
      return trace_op(
          find_op("matmul_bias_act"), x,
          {{"transpose_a", 0}, {"transpose_b", 1}, {"has_bias", 1}, {"activation", static_cast<int>(function)}});
    };
    rows.push_back({.name = std::string("matmul_bias_act/") + kActivationNames[i],
                    .inputs = {floats({5, 7}), floats({19, 7}), floats({19})},
                    .call = call,
                    .shapes = {{5, 19}},
                    .reference =
                        [function = kActivations[i]](const std::vector<Numbers>& in) {
                          Numbers y = matmul_reference({1, 5, 19, 7, false, true})({in[0], in[1]});
                          y = add_to_rows(y, in[2]);
                          for (double& value : y) value = activated(function, value);
                          return y;
                        },
                    .differentiable = false});
  }
  rows.push_back({.name = "matmul_bias_act/nothing_fused",
                  .inputs = {floats({2, 5, 7}), floats({2, 7, 3})},
                  .call =
                      [](const Inputs& x) {
                        return trace_op(find_op("matmul_bias_act"), x,
                                        {{"transpose_a", 0}, {"transpose_b", 0}, {"has_bias", 0}, {"activation", -1}});
                      },
                  .shapes = {{2, 5, 3}},
                  .reference = matmul_reference({2, 5, 3, 7}),
                  .differentiable = false});
  return rows;
}
const bool fused_matmul_added = add_op_cases(fused_matmul_rows());

// ---- convolution ----

OpCase conv_row(const std::string& name, const ConvCase& c, bool bias = false) {
  OpCase row{.name = "conv2d/" + name,
             .inputs = {floats(c.x), floats(c.weight)},
             .call = [options = c.options](
                         const Inputs& in) { return conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), options); },
             .shapes = {c.y()},
             .reference = conv_reference(c),
             .twice = c.x.count() * c.weight.count() < 6000};
  if (bias) row.inputs.push_back(floats({c.weight[0]}));
  return row;
}

const bool conv_rows = add_op_cases({
    conv_row("3x3", {{2, 3, 6, 5}, {4, 3, 3, 3}, {.padding = {1, 1}}}),
    conv_row("1x1", {{2, 5, 3, 4}, {3, 5, 1, 1}}),
    conv_row("5x5_one_channel", {{2, 1, 9, 8}, {3, 1, 5, 5}}, true),
    conv_row("stride", {{1, 2, 7, 8}, {3, 2, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}}),
    conv_row("stride_1x1", {{2, 3, 5, 6}, {2, 3, 1, 1}, {.stride = {2, 2}}}),
    conv_row("dilation", {{1, 2, 8, 7}, {2, 2, 3, 2}, {.padding = {2, 1}, .dilation = {2, 3}}}),
    conv_row("oblong", {{2, 2, 6, 9}, {3, 2, 1, 4}, {.stride = {1, 3}, .padding = {0, 2}}}, true),
    conv_row("groups", {{2, 4, 5, 4}, {6, 2, 3, 3}, {.padding = {1, 1}, .groups = 2}}, true),
    conv_row("depthwise", {{2, 3, 5, 5}, {3, 1, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}, .groups = 3}}),
    conv_row("depthwise_multiplier", {{1, 2, 4, 5}, {6, 1, 3, 2}, {.groups = 2}}),
    conv_row("rows_left_over_by_the_stride", {{1, 2, 8, 8}, {2, 2, 3, 3}, {.stride = {3, 3}}}),
    conv_row("one_pixel", {{1, 1, 1, 1}, {1, 1, 1, 1}}, true),
    conv_row("mostly_padding", {{1, 2, 1, 2}, {2, 2, 3, 3}, {.padding = {2, 2}}}),
    conv_row("beyond_the_vector_width", {{3, 17, 7, 7}, {19, 17, 3, 3}, {.padding = {1, 1}}}, true),
    conv_row("empty_batch", {{0, 2, 5, 5}, {3, 2, 3, 3}, {.padding = {1, 1}}}, true),
});

struct FusedConv {
  bool bias, residual;
  int activation;  // position in kActivations, or -1
};

OpCase fused_conv_row(const std::string& name, const FusedConv& fused) {
  ConvCase c{{2, 3, 6, 5}, {4, 3, 3, 3}, {.padding = {1, 1}}};
  int function = fused.activation < 0 ? -1 : static_cast<int>(kActivations[static_cast<size_t>(fused.activation)]);
  OpCase row{.name = "conv2d_bias_act/" + name,
             .inputs = {floats(c.x), floats(c.weight)},
             .call =
                 [fused, function](const Inputs& x) {
                   return trace_op(find_op("conv2d_bias_act"), x,
                                   {{"stride", Shape{1, 1}},
                                    {"padding", Shape{1, 1}},
                                    {"dilation", Shape{1, 1}},
                                    {"groups", 1},
                                    {"has_bias", fused.bias},
                                    {"has_residual", fused.residual},
                                    {"activation", function}});
                 },
             .shapes = {c.y()},
             .differentiable = false};
  if (fused.bias) row.inputs.push_back(floats({4, 1, 1}));
  if (fused.residual) row.inputs.push_back(floats(c.y()));
  row.reference = [c, fused](const std::vector<Numbers>& in) {
    std::vector<Numbers> operands(in.begin(), in.begin() + (fused.bias ? 3 : 2));
    Numbers y = conv_reference(c)(operands);
    for (size_t i = 0; i < y.size(); ++i) {
      if (fused.residual) y[i] += in.back()[i];
      if (fused.activation >= 0) y[i] = activated(kActivations[static_cast<size_t>(fused.activation)], y[i]);
    }
    return y;
  };
  return row;
}

const bool fused_conv_rows = add_op_cases({
    fused_conv_row("bias", {true, false, -1}),
    fused_conv_row("relu", {false, false, 0}),
    fused_conv_row("bias_relu", {true, false, 0}),
    fused_conv_row("bias_gelu", {true, false, 1}),
    fused_conv_row("bias_gelu_tanh", {true, false, 2}),
    fused_conv_row("bias_residual_relu", {true, true, 0}),
    fused_conv_row("residual_silu", {false, true, 5}),
    fused_conv_row("residual", {false, true, -1}),
});

// ---- errors ----

const bool errors = add_error_cases({
    error_case<ShapeError>("matmul/depth",
                           [] {
                             matmul(zeros({5, 7}), zeros({6, 3}));
                           },
                           {"[matmul]", "7", "6", "[5, 7]", "[6, 3]"}),
    error_case<ShapeError>("matmul/batch",
                           [] {
                             matmul(zeros({2, 5, 7}), zeros({3, 7, 3}));
                           },
                           {"[matmul]", "[2]", "[3]"}),
    error_case<ShapeError>("matmul/types",
                           [] {
                             matmul(zeros({5, 7}), zeros({7, 3}, DType::f64));
                           },
                           {"[matmul]", "f64", "f32"}),
    error_case<ShapeError>("matmul/integers",
                           [] {
                             matmul(zeros({5, 7}, DType::i64), zeros({7, 3}, DType::i64));
                           },
                           {"[matmul]", "floating", "i64 [5, 7]"}),
    error_case<ShapeError>("matmul/scalar", [] { matmul(zeros({}), zeros({3})); }, {"[matmul]", "[]"}),
    error_case<ShapeError>("matmul/devices",
                           [] {
                             const std::vector<float> numbers(35);
                             matmul(Tensor::from<float>(numbers, {5, 7}),
                                    Tensor::from<float>(std::span(numbers).first(21), {7, 3}, {DeviceType::cpu, 1}));
                           },
                           {"[matmul]", "cpu:0", "cpu:1"}),
    error_case<ShapeError>("matmul_bias_act/activation",
                           [] {
                             trace_op(find_op("matmul_bias_act"), {zeros({5, 7}), zeros({7, 3})},
                                      {{"transpose_a", 0},
                                       {"transpose_b", 0},
                                       {"has_bias", 0},
                                       {"activation", static_cast<int>(ElementwiseFunction::exp)}});
                           },
                           {"[matmul_bias_act]", "relu"}),
    error_case<ShapeError>("linear/features",
                           [] {
                             linear(zeros({5, 7}), zeros({3, 6}));
                           },
                           {"[linear]", "7", "6", "[3, 6]", "[5, 7]"}),
    error_case<ShapeError>("linear/bias",
                           [] {
                             linear(zeros({5, 7}), zeros({3, 7}), zeros({4}));
                           },
                           {"[linear]", "[4]", "[3]"}),
    error_case<ShapeError>(
        "conv2d/channels",
        [] {
          conv2d(zeros({256, 3, 28, 28}), zeros({64, 1, 3, 3}));
        },
        {"[conv2d] input has 3 channels, weight expects 1 (weight [64, 1, 3, 3], input [256, 3, 28, 28])"}),
    error_case<ShapeError>("conv2d/kernel_too_large",
                           [] {
                             conv2d(zeros({1, 1, 4, 4}), zeros({1, 1, 5, 5}));
                           },
                           {"[conv2d]", "5 of 4", "[1, 1, 4, 4]"}),
    error_case<ShapeError>("conv2d/groups",
                           [] {
                             conv2d(zeros({1, 4, 4, 4}), zeros({3, 2, 1, 1}), {}, {.groups = 2});
                           },
                           {"[conv2d]", "3 output channels", "2 groups"}),
    error_case<ShapeError>("conv2d/rank",
                           [] {
                             conv2d(zeros({4, 4}), zeros({3, 2, 1, 1}));
                           },
                           {"[conv2d]", "rank 2"}),
    error_case<ShapeError>("conv2d/bias",
                           [] {
                             conv2d(zeros({1, 2, 4, 4}), zeros({3, 2, 1, 1}), zeros({2}));
                           },
                           {"[conv2d]", "bias is [2]", "[3]"}),
    error_case<ShapeError>("conv2d/stride",
                           [] {
                             conv2d(zeros({1, 2, 4, 4}), zeros({3, 2, 1, 1}), {}, {.stride = {0, 1}});
                           },
                           {"[conv2d]", "stride is [0, 1]"}),
    error_case<ShapeError>("conv2d/types",
                           [] {
                             conv2d(zeros({1, 2, 4, 4}), zeros({3, 2, 1, 1}, DType::bf16));
                           },
                           {"[conv2d]", "weight is bf16", "f32"}),
});

}  // namespace

}  // namespace bonfire::op_test::cases_dense
