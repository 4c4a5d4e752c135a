#include <algorithm>
#include <cmath>
#include <limits>

#include "bonfire/base/error.h"
#include "bonfire/ops/attention.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/layer_norm.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/lstm.h"
#include "bonfire/ops/random.h"
#include "bonfire/ops/softmax.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_sequence {

namespace {

// ---- Softmax and cross-entropy, over [outer, length, inner] ----

struct Span3 {
  size_t outer, length, inner;
};

// log softmax, from sums in the order of the elements.
Numbers log_softmax_reference(const Numbers& x, Span3 s) {
  Numbers y(x.size());
  for (size_t o = 0; o < s.outer; ++o)
    for (size_t n = 0; n < s.inner; ++n) {
      auto at = [&](size_t i) { return (o * s.length + i) * s.inner + n; };
      double total = 0;
      for (size_t i = 0; i < s.length; ++i) total += std::exp(x[at(i)]);
      for (size_t i = 0; i < s.length; ++i) y[at(i)] = x[at(i)] - std::log(total);
    }
  return y;
}

Reference softmax_reference(Span3 s) {
  return [s](const std::vector<Numbers>& inputs) {
    Numbers y = log_softmax_reference(inputs[0], s);
    for (double& value : y) value = std::exp(value);
    return y;
  };
}

Reference cross_entropy_reference(Span3 s, CrossEntropyOptions options) {
  return [s, options](const std::vector<Numbers>& inputs) -> Numbers {
    Numbers log_p = log_softmax_reference(inputs[0], s), losses;
    double total = 0, count = 0;
    for (size_t o = 0; o < s.outer; ++o)
      for (size_t n = 0; n < s.inner; ++n) {
        double target = inputs[1][o * s.inner + n], loss = 0;
        if (target != static_cast<double>(options.ignore_index)) {
          ++count;
          for (size_t i = 0; i < s.length; ++i) {
            double weight = options.label_smoothing / static_cast<double>(s.length);
            if (static_cast<double>(i) == target) weight += 1 - options.label_smoothing;
            loss -= weight * log_p[(o * s.length + i) * s.inner + n];
          }
        }
        losses.push_back(loss);
        total += loss;
      }
    if (options.reduction == Reduction::none) return losses;
    return {options.reduction == Reduction::mean ? total / count : total};
  };
}

OpCase softmax_case(const std::string& name, const Shape& shape, int64_t axis, Span3 s) {
  return {.name = "softmax/" + name,
          .inputs = {floats(shape, -3, 3)},
          .call = [axis](const Inputs& x) { return softmax(x[0], axis); },
          .shapes = {shape},
          .reference = softmax_reference(s)};
}
OpCase log_softmax_case(const std::string& name, const Shape& shape, int64_t axis, Span3 s) {
  return {.name = "log_softmax/" + name,
          .inputs = {floats(shape, -3, 3)},
          .call = [axis](const Inputs& x) { return log_softmax(x[0], axis); },
          .shapes = {shape},
          .reference = [s](const std::vector<Numbers>& x) { return log_softmax_reference(x[0], s); }};
}
OpCase cross_entropy_case(const std::string& name, const Shape& logits, InputCase target, Span3 s,
                          CrossEntropyOptions options) {
  Shape loss = options.reduction == Reduction::none ? target.shape : Shape{};
  return {.name = "cross_entropy/" + name,
          .inputs = {floats(logits, -3, 3), std::move(target)},
          .call = [options](const Inputs& x) { return cross_entropy(x[0], x[1], options); },
          .shapes = {loss},
          .reference = cross_entropy_reference(s, options)};
}

const bool softmax_cases = add_op_cases({
    softmax_case("rows", {3, 37}, 1, {3, 37, 1}),
    softmax_case("one_class", {4, 1}, -1, {4, 1, 1}),
    softmax_case("columns", {5, 3}, 0, {1, 5, 3}),
    softmax_case("middle_axis_of_70", {2, 4, 70}, 1, {2, 4, 70}),
    softmax_case("empty", {0, 5}, 1, {0, 5, 1}),
    log_softmax_case("rows", {2, 19}, -1, {2, 19, 1}),
    log_softmax_case("middle_axis", {2, 3, 5}, 1, {2, 3, 5}),
    log_softmax_case("one", {1}, 0, {1, 1, 1}),
});

const bool cross_entropy_cases = add_op_cases({
    cross_entropy_case("mean", {5, 7}, integers({5}, 0, 7), {5, 7, 1}, {}),
    cross_entropy_case("many_classes", {3, 133}, integers({3}, 0, 133), {3, 133, 1}, {}),
    cross_entropy_case("sum", {4, 3}, integers({4}, 0, 3), {4, 3, 1}, {.reduction = Reduction::sum}),
    cross_entropy_case("none", {4, 3}, integers({4}, 0, 3), {4, 3, 1}, {.reduction = Reduction::none}),
    cross_entropy_case("smoothed", {4, 10}, integers({4}, 0, 10), {4, 10, 1}, {.label_smoothing = 0.1}),
    cross_entropy_case("ignored", {4, 3}, given({4}, {2, -100, 0, -100}, DType::i64, false), {4, 3, 1}, {}),
    cross_entropy_case("smoothed_and_ignored", {4, 3}, given({4}, {1, 2, 1, 0}, DType::i64, false), {4, 3, 1},
                       {.label_smoothing = 0.3, .ignore_index = 1}),
    cross_entropy_case("pixels", {2, 3, 2, 3}, integers({2, 2, 3}, 0, 3), {2, 3, 6}, {}),
    cross_entropy_case("pixels_none", {2, 4, 3}, integers({2, 3}, 0, 4), {2, 4, 3},
                       {.label_smoothing = 0.2, .reduction = Reduction::none}),
    cross_entropy_case("one_row_one_class", {1, 1}, integers({1}, 0, 1), {1, 1, 1}, {}),
    cross_entropy_case("empty_sum", {0, 3}, integers({0}, 0, 3), {0, 3, 1}, {.reduction = Reduction::sum}),
});

// ---- The other losses ----

// The mean of term(input − target).
Reference mean_of(double (*term)(double)) {
  return [term](const std::vector<Numbers>& x) -> Numbers {
    double total = 0;
    for (size_t i = 0; i < x[0].size(); ++i) total += term(x[0][i] - x[1][i]);
    return {total / static_cast<double>(x[0].size())};
  };
}

const bool loss_cases = add_op_cases({
    {.name = "mse_loss/mean",
     .inputs = {floats({3, 5}), floats({3, 5})},
     .call = [](const Inputs& x) { return mse_loss(x[0], x[1]); },
     .shapes = {{}},
     .reference = mean_of([](double d) { return d * d; }),
     .twice = true},
    {.name = "mse_loss/none",
     .inputs = {floats({7}), floats({7})},
     .call = [](const Inputs& x) { return mse_loss(x[0], x[1], {.reduction = Reduction::none}); },
     .shapes = {{7}}},
    {.name = "l1_loss/mean",
     .inputs = {floats({9}, 0.5, 1), floats({9}, -1, 0.4)},
     .call = [](const Inputs& x) { return l1_loss(x[0], x[1]); },
     .shapes = {{}},
     .reference = mean_of([](double d) { return std::abs(d); })},
    {.name = "smooth_l1_loss/both_sides_of_beta",
     .inputs = {floats({2, 9}), floats({2, 9})},
     .call = [](const Inputs& x) { return smooth_l1_loss(x[0], x[1], {.beta = 0.5}); },
     .shapes = {{}},
     .reference = mean_of([](double d) { return std::abs(d) < 0.5 ? d * d : std::abs(d) - 0.25; })},
    {.name = "smooth_l1_loss/beta_0",
     .inputs = {floats({4}, 0.5, 1), floats({4}, -1, 0)},
     .call = [](const Inputs& x) { return smooth_l1_loss(x[0], x[1], {.beta = 0, .reduction = Reduction::sum}); },
     .shapes = {{}}},
    {.name = "top_k_correct/2",
     .inputs = {distinct_floats({6, 5}), integers({6}, 0, 5)},
     .call = [](const Inputs& x) { return top_k_correct(x[0], x[1], 2); },
     .shapes = {{}},
     .dtypes = {DType::i64},
     .reference = [](const std::vector<Numbers>& x) -> Numbers {
       double correct = 0;
       for (size_t n = 0; n < 6; ++n) {
         const double* row = x[0].data() + n * 5;
         double mine = row[static_cast<size_t>(x[1][n])];
         correct += std::count_if(row, row + 5, [mine](double other) { return other > mine; }) < 2 ? 1 : 0;
       }
       return {correct};
     },
     .differentiable = false,
     .runs_in_bf16 = false},
    {.name = "top_k_correct/more_than_classes",
     .inputs = {distinct_floats({4, 3}), integers({4}, 0, 3)},
     .call = [](const Inputs& x) { return top_k_correct(x[0], x[1], 5); },
     .shapes = {{}},
     .dtypes = {DType::i64},
     .reference = [](const std::vector<Numbers>&) -> Numbers { return {4}; },
     .differentiable = false,
     .runs_in_bf16 = false},
});

// ---- Layer norm ----

Reference layer_norm_reference(size_t rows, size_t columns, double eps) {
  return [=](const std::vector<Numbers>& x) {
    Numbers y(x[0].size());
    for (size_t r = 0; r < rows; ++r) {
      const double* row = x[0].data() + r * columns;
      double mean = 0, variance = 0;
      for (size_t i = 0; i < columns; ++i) mean += row[i] / static_cast<double>(columns);
      for (size_t i = 0; i < columns; ++i) variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(columns);
      for (size_t i = 0; i < columns; ++i) {
        double value = (row[i] - mean) / std::sqrt(variance + eps);
        if (x.size() > 1) value *= x[1][i];
        if (x.size() > 2) value += x[2][i];
        y[r * columns + i] = value;
      }
    }
    return y;
  };
}

const bool layer_norm_cases = add_op_cases({
    {.name = "layer_norm/affine",
     .inputs = {floats({2, 3, 37}), floats({37}), floats({37})},
     .call = [](const Inputs& x) { return layer_norm(x[0], x[1], x[2]); },
     .shapes = {{2, 3, 37}},
     .reference = layer_norm_reference(6, 37, 1e-5)},
    {.name = "layer_norm/many_rows",
     .inputs = {floats({70, 3}), floats({3}), floats({3})},
     .call = [](const Inputs& x) { return layer_norm(x[0], x[1], x[2], {.eps = 1e-3}); },
     .shapes = {{70, 3}},
     .reference = layer_norm_reference(70, 3, 1e-3)},
    {.name = "layer_norm/plain_over_two_axes",
     .inputs = {floats({4, 3, 5})},
     .call = [](const Inputs& x) { return layer_norm(x[0], {}, {}, {.rank = 2, .eps = 1e-2}); },
     .shapes = {{4, 3, 5}},
     .reference = layer_norm_reference(4, 15, 1e-2)},
    {.name = "layer_norm/weight_only",
     .inputs = {floats({5, 4}), floats({4})},
     .call = [](const Inputs& x) { return layer_norm(x[0], x[1]); },
     .shapes = {{5, 4}},
     .reference = layer_norm_reference(5, 4, 1e-5)},
    {.name = "layer_norm/one_column",
     .inputs = {floats({3, 1}), floats({1}), floats({1})},
     .call = [](const Inputs& x) { return layer_norm(x[0], x[1], x[2]); },
     .shapes = {{3, 1}},
     .reference = layer_norm_reference(3, 1, 1e-5)},
    {.name = "layer_norm/no_rows",
     .inputs = {floats({0, 4}), floats({4}), floats({4})},
     .call = [](const Inputs& x) { return layer_norm(x[0], x[1], x[2]); },
     .shapes = {{0, 4}}},
});

// ---- LSTM ----

struct LstmCase {
  size_t times, batch, input, hidden;
};

double squash(double x) { return 1 / (1 + std::exp(-x)); }

// One layer over x [T, N, I], written out.
Numbers lstm_layer_reference(const LstmCase& s, const Numbers& x, const Numbers& w_ih, const Numbers& w_hh,
                             const Numbers& bias, Numbers h, Numbers c) {
  Numbers y;
  for (size_t t = 0; t < s.times; ++t) {
    Numbers next_h(h.size()), next_c(c.size());
    for (size_t n = 0; n < s.batch; ++n)
      for (size_t j = 0; j < s.hidden; ++j) {
        double gate[4];
        for (size_t g = 0; g < 4; ++g) {
          size_t row = g * s.hidden + j;
          gate[g] = bias[row];
          for (size_t i = 0; i < s.input; ++i) gate[g] += w_ih[row * s.input + i] * x[(t * s.batch + n) * s.input + i];
          for (size_t i = 0; i < s.hidden; ++i) gate[g] += w_hh[row * s.hidden + i] * h[n * s.hidden + i];
        }
        size_t at = n * s.hidden + j;
        next_c[at] = squash(gate[1]) * c[at] + squash(gate[0]) * std::tanh(gate[2]);
        next_h[at] = squash(gate[3]) * std::tanh(next_c[at]);
      }
    h = next_h, c = next_c;
    y.insert(y.end(), h.begin(), h.end());
  }
  return y;
}

Reference lstm_reference(LstmCase s) {  // x, w_ih, w_hh, b_ih, b_hh, h0, c0
  return [s](const std::vector<Numbers>& x) {
    Numbers bias = x[3];
    for (size_t i = 0; i < bias.size(); ++i) bias[i] += x[4][i];
    return lstm_layer_reference(s, x[0], x[1], x[2], bias, x[5], x[6]);
  };
}

std::vector<InputCase> lstm_inputs(int64_t times, int64_t batch, int64_t input, int64_t hidden) {
  return {floats({times, batch, input}), floats({4 * hidden, input}), floats({4 * hidden, hidden}),
          floats({4 * hidden}),          floats({4 * hidden}),        floats({1, batch, hidden}),
          floats({1, batch, hidden})};
}

Inputs all_of(const LstmResult& result) { return {result.output, result.h, result.c}; }
Inputs one_layer(const Inputs& x) {
  LstmWeights weights[] = {{x[1], x[2], x[3], x[4]}};
  return all_of(lstm(x[0], weights, x[5], x[6]));
}

const bool lstm_cases = add_op_cases({
    {.name = "lstm/one_layer",
     .inputs = lstm_inputs(4, 3, 5, 6),
     .call = one_layer,
     .shapes = {{4, 3, 6}, {1, 3, 6}, {1, 3, 6}},
     .dtypes = {DType::f32, DType::f32, DType::f32},
     .reference = lstm_reference({4, 3, 5, 6}),
     .bf16_tolerance = 4e-2},
    {.name = "lstm/one_time_one_unit",
     .inputs = lstm_inputs(1, 1, 1, 1),
     .call = one_layer,
     .shapes = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     .dtypes = {DType::f32, DType::f32, DType::f32},
     .reference = lstm_reference({1, 1, 1, 1}),
     .bf16_tolerance = 4e-2},
    {.name = "lstm/only_the_last_h",  // no gradient flows into output and c
     .inputs = lstm_inputs(3, 2, 3, 4),
     .call = [](const Inputs& x) { return one_layer(x)[1]; },
     .shapes = {{1, 2, 4}},
     .bf16_tolerance = 4e-2},
    {.name = "lstm/two_layers_batch_first_without_bias",
     .inputs = {floats({2, 3, 5}), floats({16, 5}), floats({16, 4}), floats({16, 4}), floats({16, 4})},
     .call =
         [](const Inputs& x) {
           LstmWeights weights[] = {{x[1], x[2], {}, {}}, {x[3], x[4], {}, {}}};
           return all_of(lstm(x[0], weights, {}, {}, {.batch_first = true}));
         },
     .shapes = {{2, 3, 4}, {2, 2, 4}, {2, 2, 4}},
     .dtypes = {DType::f32, DType::f32, DType::f32},
     .bf16_tolerance = 4e-2},
});

// ---- Attention ----

struct AttentionCase {
  size_t heads, queries, keys, features, values;  // heads counted over the batch
  bool causal = false;
  double scale = 0;
};

// All heads with the whole matrix of scores. `mask(head, t, s)` is added.
Reference attention_reference(AttentionCase a,
                              const std::function<double(const Numbers&, size_t, size_t, size_t)>& mask = {}) {
  return [a, mask](const std::vector<Numbers>& x) {
    double scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.features));
    Numbers y(a.heads * a.queries * a.values);
    for (size_t h = 0; h < a.heads; ++h)
      for (size_t t = 0; t < a.queries; ++t) {
        Numbers weight(a.keys);
        double total = 0;
        for (size_t s = 0; s < a.keys; ++s) {
          double score = 0;
          for (size_t d = 0; d < a.features; ++d)
            score += x[0][(h * a.queries + t) * a.features + d] * x[1][(h * a.keys + s) * a.features + d];
          score = score * scale + (mask ? mask(x[3], h, t, s) : 0);
          weight[s] = a.causal && s > t ? 0 : std::exp(score);
          total += weight[s];
        }
        for (size_t s = 0; s < a.keys; ++s)
          for (size_t e = 0; e < a.values; ++e)
            y[(h * a.queries + t) * a.values + e] += weight[s] / total * x[2][(h * a.keys + s) * a.values + e];
      }
    return y;
  };
}

Tensor attend(const Inputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2]); }

const bool attention_cases = add_op_cases({
    {.name = "attention/plain",
     .inputs = {floats({2, 3, 5, 4}), floats({2, 3, 7, 4}), floats({2, 3, 7, 6})},
     .call = attend,
     .shapes = {{2, 3, 5, 6}},
     .reference = attention_reference({6, 5, 7, 4, 6})},
    {.name = "attention/causal",
     .inputs = {floats({1, 2, 6, 3}), floats({1, 2, 6, 3}), floats({1, 2, 6, 3})},
     .call = [](const Inputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true}); },
     .shapes = {{1, 2, 6, 3}},
     .reference = attention_reference({2, 6, 6, 3, 3, true})},
    {.name = "attention/padding_mask_and_scale",  // one number for each key of a sequence, [B, 1, 1, S]
     .inputs = {floats({2, 2, 3, 4}), floats({2, 2, 5, 4}), floats({2, 2, 5, 4}), constant_floats({2, 1, 1, 5}, -4, 0)},
     .call =
         [](const Inputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3], .scale = 0.7}); },
     .shapes = {{2, 2, 3, 4}},
     .reference = attention_reference({4, 3, 5, 4, 4, false, 0.7}, [](const Numbers& mask, size_t h, size_t,
                                                                      size_t s) { return mask[h / 2 * 5 + s]; })},
    {.name = "attention/mask_of_queries_and_keys",  // [T, S]
     .inputs = {floats({1, 2, 3, 4}), floats({1, 2, 4, 4}), floats({1, 2, 4, 4}), constant_floats({3, 4}, -2, 2)},
     .call = [](const Inputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3]}); },
     .shapes = {{1, 2, 3, 4}},
     .reference = attention_reference({2, 3, 4, 4, 4},
                                      [](const Numbers& mask, size_t, size_t t, size_t s) { return mask[t * 4 + s]; })},
    {.name = "attention/bool_mask",
     .inputs = {floats({1, 1, 2, 3}), floats({1, 1, 3, 3}), floats({1, 1, 3, 3}),
                given({2, 3}, {1, 0, 1, 0, 1, 1}, DType::boolean, false)},
     .call = [](const Inputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3]}); },
     .shapes = {{1, 1, 2, 3}},
     .reference = attention_reference({1, 2, 3, 3, 3},
                                      [](const Numbers& mask, size_t, size_t t, size_t s) {
                                        return mask[t * 3 + s] != 0 ? 0.0 : -std::numeric_limits<double>::infinity();
                                      })},
    {.name = "attention/dropout",
     .inputs = {floats({1, 2, 5, 3}), floats({1, 2, 6, 3}), floats({1, 2, 6, 4})},
     .call =
         [](const Inputs& x) {
           manual_seed(7);  // the same mask on every call
           return scaled_dot_product_attention(x[0], x[1], x[2], {.dropout = 0.4});
         },
     .shapes = {{1, 2, 5, 4}}},
    {.name = "attention/one_of_each",
     .inputs = {floats({1, 1, 1, 1}), floats({1, 1, 1, 1}), floats({1, 1, 1, 1})},
     .call = attend,
     .shapes = {{1, 1, 1, 1}},
     .reference = attention_reference({1, 1, 1, 1, 1})},
    {.name = "attention/no_queries",
     .inputs = {floats({2, 1, 0, 4}), floats({2, 1, 3, 4}), floats({2, 1, 3, 4})},
     .call = attend,
     .shapes = {{2, 1, 0, 4}}},
});

// ---- Calls that must fail ----

const bool sequence_errors = add_error_cases({
    error_case<ShapeError>("softmax/axis",
                           [] {
                             softmax(zeros({2, 3}), 2);
                           },
                           {"[softmax]", "axis 2"}),
    error_case<ShapeError>("softmax/integers",
                           [] {
                             softmax(zeros({2, 3}, DType::i64), 0);
                           },
                           {"[softmax]", "i64 [2, 3]"}),
    error_case<ShapeError>("cross_entropy/rank", [] { cross_entropy(zeros({3}), zeros({3}, DType::i64)); },
                           {"[cross_entropy]", "[N, C]", "f32 [3]"}),
    error_case<ShapeError>("cross_entropy/rows",
                           [] {
                             cross_entropy(zeros({3, 4}), zeros({2}, DType::i64));
                           },
                           {"[cross_entropy]", "target", "[2]", "[3]"}),
    error_case<ShapeError>("cross_entropy/target_type",
                           [] {
                             cross_entropy(zeros({3, 4}), zeros({3}));
                           },
                           {"[cross_entropy]", "target", "i64"}),
    error_case<ConfigError>("cross_entropy/smoothing",
                            [] {
                              cross_entropy(zeros({3, 4}), zeros({3}, DType::i64), {.label_smoothing = 1.5});
                            },
                            {"[cross_entropy]", "label_smoothing", "1.5"}),
    error_case<DataError>("cross_entropy/target_out_of_range",
                          [] {
                            cross_entropy(zeros({2, 4}), Tensor::from<int64_t>({1, 4}, {2})).item();
                          },
                          {"[cross_entropy]", "target 4", "row 1", "0 to 3"}),
    error_case<ShapeError>("mse_loss/broadcast",
                           [] {
                             mse_loss(zeros({3}), zeros({3, 1}));
                           },
                           {"[mse_loss]", "[3]", "[3, 1]"}),
    error_case<ConfigError>("smooth_l1_loss/beta", [] { smooth_l1_loss(zeros({3}), zeros({3}), {.beta = -1}); },
                            {"[smooth_l1_loss]", "beta", "-1"}),
    error_case<ShapeError>("top_k_correct/shapes",
                           [] {
                             top_k_correct(zeros({3, 4}), zeros({2}, DType::i64));
                           },
                           {"[top_k_correct]", "[3, 4]", "[2]"}),
    error_case<ShapeError>("layer_norm/weight",
                           [] {
                             layer_norm(zeros({2, 3}), zeros({4}), zeros({3}));
                           },
                           {"[layer_norm]", "weight", "[4]", "[3]"}),
    error_case<ShapeError>("layer_norm/rank",
                           [] {
                             layer_norm(zeros({2, 3}), {}, {}, {.rank = 3});
                           },
                           {"[layer_norm]", "last 3 axes", "[2, 3]"}),
    error_case<ConfigError>("dropout/p", [] { dropout(zeros({3}), 1.5); }, {"[dropout]", "1.5"}),
    error_case<ShapeError>("uniform_random/type", [] { uniform_random({3}, DType::i64); }, {"[uniform_random]", "i64"}),
    error_case<ShapeError>("lstm/weights",
                           [] {
                             LstmWeights weights[] = {{zeros({8, 3}), zeros({8, 3}), {}, {}}};
                             lstm(zeros({4, 2, 3}), weights);
                           },
                           {"[lstm]", "layer 0", "[8, 3]", "[4, 2, 3]"}),
    error_case<ShapeError>("lstm/state",
                           [] {
                             LstmWeights weights[] = {{zeros({8, 3}), zeros({8, 2}), {}, {}}};
                             lstm(zeros({4, 5, 3}), weights, zeros({1, 4, 2}));
                           },
                           {"[lstm]", "h0", "[1, 4, 2]", "[1, 5, 2]"}),
    error_case<ShapeError>("attention/rank",
                           [] {
                             scaled_dot_product_attention(zeros({2, 3}), zeros({2, 3}), zeros({2, 3}));
                           },
                           {"[attention]", "4 axes", "[2, 3]"}),
    error_case<ShapeError>("attention/keys",
                           [] {
                             Tensor q = zeros({1, 2, 3, 4});
                             scaled_dot_product_attention(q, zeros({1, 2, 5, 6}), zeros({1, 2, 5, 4}));
                           },
                           {"[attention]", "k has shape [1, 2, 5, 6]", "[1, 2, 5, 4]"}),
    error_case<ShapeError>("attention/mask",
                           [] {
                             Tensor q = zeros({1, 2, 3, 4});
                             scaled_dot_product_attention(q, q, q, {.mask = zeros({3, 5})});
                           },
                           {"[attention]", "[3, 5]", "[1, 2, 3, 3]"}),
});

}  // namespace
}  // namespace bonfire::op_test::cases_sequence
