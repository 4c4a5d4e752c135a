// Rows for ops/elementwise.h: every function, with the shapes that broadcasting and vector loops find hard.

#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_elementwise {
namespace {

struct Unary {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*reference)(double);
  double low = -2, high = 2;
  double gap = 0;
  DType result = DType::f32;
  bool twice = true;
};

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

const Unary kUnary[] = {
    {"negative", negative, [](double x) { return -x; }},
    {"absolute", absolute, [](double x) { return std::abs(x); }, -2, 2, 0.1},
    {"exp", exp, [](double x) { return std::exp(x); }},
    {"log", log, [](double x) { return std::log(x); }, 0.2, 3},
    {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.2, 3},
    {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.2, 3},
    {"reciprocal", reciprocal, [](double x) { return 1 / x; }, 0.5, 3},
    {"square", square, [](double x) { return x * x; }},
    {"sin", sin, [](double x) { return std::sin(x); }},
    {"cos", cos, [](double x) { return std::cos(x); }},
    {"tanh", tanh, [](double x) { return std::tanh(x); }},
    {"sigmoid", sigmoid, sigmoid_of},
    {"relu", relu, [](double x) { return x < 0 ? 0 : x; }, -2, 2, 0.1},
    {"gelu", gelu, [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }},
    {"gelu_tanh", gelu_tanh,
     [](double x) { return x * sigmoid_of(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }},
    {"silu", silu, [](double x) { return x * sigmoid_of(x); }},
    {"sign", sign, [](double x) { return x > 0 ? 1.0 : -1.0; }, -2, 2, 0.1, DType::f32, false},
    {"erf", erf, [](double x) { return std::erf(x); }},
    {"floor", floor, [](double x) { return std::floor(x); }, 0.1, 0.9, 0, DType::f32, false},
    {"logical_not", logical_not, [](double x) { return x == 0 ? 1.0 : 0.0; }, -2, 2, 0.1, DType::boolean, false},
};

OpCase unary_row(const Unary& unary, const char* variant, const Shape& shape) {
  return {.name = std::string(unary.name) + "/" + variant,
          .inputs = {{.shape = shape, .low = unary.low, .high = unary.high, .gap = unary.gap}},
          .call = [op = unary.op](const Inputs& x) { return op(x[0]); },
          .shapes = {shape},
          .dtypes = {unary.result},
          .reference =
              [f = unary.reference](const std::vector<Numbers>& x) {
                Numbers y;
                for (double number : x[0]) y.push_back(f(number));
                return y;
              },
          .differentiable = is_floating(unary.result),
          .twice = unary.twice};
}

bool add_unary() {
  std::vector<OpCase> rows;
  for (const Unary& unary : kUnary) {
    rows.push_back(unary_row(unary, "matrix", {3, 5}));
    rows.push_back(unary_row(unary, "scalar", {}));
    rows.push_back(unary_row(unary, "odd_length", {1037}));
    rows.push_back(unary_row(unary, "empty", {0, 4}));
  }
  return add_op_cases(std::move(rows));
}

struct Binary {
  const char* name;
  Tensor (*op)(const Operand&, const Operand&);
  double (*reference)(double, double);
  double low = -2, high = 2;  // of both
  DType result = DType::f32;
  bool twice = true;
};

const Binary kBinary[] = {
    {"add", add, [](double x, double y) { return x + y; }},
    {"sub", sub, [](double x, double y) { return x - y; }},
    {"mul", mul, [](double x, double y) { return x * y; }},
    {"div", div, [](double x, double y) { return x / y; }, 0.5, 2},
    {"pow", pow, [](double x, double y) { return std::pow(x, y); }, 0.3, 2},
    {"maximum", maximum, [](double x, double y) { return std::fmax(x, y); }},
    {"minimum", minimum, [](double x, double y) { return std::fmin(x, y); }},
    {"equal", equal, [](double x, double y) { return x == y ? 1.0 : 0.0; }, -2, 2, DType::boolean, false},
    {"not_equal", not_equal, [](double x, double y) { return x != y ? 1.0 : 0.0; }, -2, 2, DType::boolean, false},
    {"less", less, [](double x, double y) { return x < y ? 1.0 : 0.0; }, -2, 2, DType::boolean, false},
    {"less_equal", less_equal, [](double x, double y) { return x <= y ? 1.0 : 0.0; }, -2, 2, DType::boolean, false},
    {"greater", greater, [](double x, double y) { return x > y ? 1.0 : 0.0; }, -2, 2, DType::boolean, false},
    {"greater_equal", greater_equal, [](double x, double y) { return x >= y ? 1.0 : 0.0; }, -2, 2, DType::boolean,
     false},
};

// Element by element with NumPy's broadcasting, written out.
Numbers broadcast_reference(double (*f)(double, double), const Numbers& x, const Shape& x_shape, const Numbers& y,
                            const Shape& y_shape, const Shape& result) {
  Numbers numbers;
  for (int64_t i = 0; i < result.count(); ++i) {
    int64_t rest = i, at[2] = {0, 0}, stride[2] = {1, 1};
    for (int axis = 1; axis <= result.rank(); ++axis) {
      int64_t index = rest % result[-axis];
      rest /= result[-axis];
      const Shape* shapes[2] = {&x_shape, &y_shape};
      for (int k = 0; k < 2; ++k) {
        if (axis > shapes[k]->rank()) continue;
        int64_t extent = (*shapes[k])[-axis];
        if (extent > 1) at[k] += index * stride[k];
        stride[k] *= extent;
      }
    }
    numbers.push_back(f(x[static_cast<size_t>(at[0])], y[static_cast<size_t>(at[1])]));
  }
  return numbers;
}

OpCase binary_row(const Binary& binary, const char* variant, const Shape& x, const Shape& y, const Shape& result) {
  return {.name = std::string(binary.name) + "/" + variant,
          .inputs = {floats(x, binary.low, binary.high), floats(y, binary.low, binary.high)},
          .call = [op = binary.op](const Inputs& inputs) { return op(inputs[0], inputs[1]); },
          .shapes = {result},
          .dtypes = {binary.result},
          .reference =
              [f = binary.reference, x, y, result](const std::vector<Numbers>& inputs) {
                return broadcast_reference(f, inputs[0], x, inputs[1], y, result);
              },
          .differentiable = is_floating(binary.result),
          .twice = binary.twice};
}

OpCase number_row(const Binary& binary) {
  return {.name = std::string(binary.name) + "/number",
          .inputs = {floats({2, 5}, binary.low, binary.high)},
          .call = [op = binary.op](const Inputs& inputs) { return op(op(inputs[0], 1.5), 2); },
          .shapes = {{2, 5}},
          .dtypes = {binary.result},
          .differentiable = is_floating(binary.result)};
}

bool add_binary() {
  std::vector<OpCase> rows;
  for (const Binary& binary : kBinary) {
    rows.push_back(binary_row(binary, "same_shape", {3, 5}, {3, 5}, {3, 5}));
    rows.push_back(binary_row(binary, "both_broadcast", {2, 1, 5}, {3, 1}, {2, 3, 5}));
    rows.push_back(binary_row(binary, "row", {3, 7}, {7}, {3, 7}));
    rows.push_back(binary_row(binary, "column", {3, 1}, {3, 7}, {3, 7}));
    rows.push_back(binary_row(binary, "channels", {2, 3, 2, 2}, {3, 1, 1}, {2, 3, 2, 2}));
    rows.push_back(binary_row(binary, "scalar_tensor", {2, 3}, {}, {2, 3}));
    rows.push_back(binary_row(binary, "two_scalars", {}, {}, {}));
    rows.push_back(binary_row(binary, "odd_length", {1037}, {1037}, {1037}));
    rows.push_back(binary_row(binary, "empty", {0, 3}, {1, 3}, {0, 3}));
    rows.push_back(number_row(binary));
  }
  return add_op_cases(std::move(rows));
}

bool add_others() {
  return add_op_cases({
      {.name = "where/same_shape",
       .inputs = {booleans({3, 5}), floats({3, 5}), floats({3, 5})},
       .call = [](const Inputs& x) { return where(x[0], x[1], x[2]); },
       .shapes = {{3, 5}},
       .reference =
           [](const std::vector<Numbers>& x) {
             Numbers y;
             for (size_t i = 0; i < x[0].size(); ++i) y.push_back(x[0][i] != 0 ? x[1][i] : x[2][i]);
             return y;
           },
       .twice = true},
      {.name = "where/broadcast",
       .inputs = {booleans({3, 1}), floats({5}), floats({2, 1, 1})},
       .call = [](const Inputs& x) { return where(x[0], x[1], x[2]); },
       .shapes = {{2, 3, 5}}},
      {.name = "where/number",
       .inputs = {booleans({67}), floats({67})},
       .call = [](const Inputs& x) { return where(x[0], x[1], -1.0); },
       .shapes = {{67}}},
      {.name = "clamp/numbers",
       .inputs = {given({6}, {-2, -0.6, -0.4, 0.1, 0.9, 3})},
       .call = [](const Inputs& x) { return clamp(x[0], -0.5, 0.75); },
       .shapes = {{6}},
       .reference = [](const std::vector<Numbers>&) { return Numbers{-0.5, -0.5, -0.4, 0.1, 0.75, 0.75}; },
       .twice = true},
      {.name = "clamp/tensors",
       .inputs = {floats({3, 5}, -2, 2), floats({5}, -0.9, -0.5), floats({3, 1}, 0.5, 0.9)},
       .call = [](const Inputs& x) { return clamp(x[0], x[1], x[2]); },
       .shapes = {{3, 5}}},
      {.name = "cast/to_f64_and_back",
       .inputs = {floats({3, 5})},
       .call = [](const Inputs& x) { return cast(cast(x[0], DType::f64), DType::f32); },
       .shapes = {{3, 5}},
       .differentiable = false},  // f32 on the way: differences in f64 would see its rounding
      {.name = "cast/to_f64",
       .inputs = {floats({67})},
       .call = [](const Inputs& x) { return cast(x[0], DType::f64); },
       .shapes = {{67}},
       .dtypes = {DType::f64}},
      {.name = "cast/to_integer",
       .inputs = {given({4}, {-1.7, -0.2, 0.9, 5.0})},
       .call = [](const Inputs& x) { return cast(x[0], DType::i32); },
       .shapes = {{4}},
       .dtypes = {DType::i32},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{-1, 0, 0, 5};
           },
       .differentiable = false},
      {.name = "cast/to_bool",
       .inputs = {given({4}, {-1.5, 0, 0.25, 2})},
       .call = [](const Inputs& x) { return cast(x[0], DType::boolean); },
       .shapes = {{4}},
       .dtypes = {DType::boolean},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 0, 1, 1};
           },
       .differentiable = false},
      {.name = "pow/square_by_number",
       .inputs = {floats({3, 5})},  // negative bases
       .call = [](const Inputs& x) { return pow(x[0], 2.0); },
       .shapes = {{3, 5}},
       .reference =
           [](const std::vector<Numbers>& x) {
             Numbers y;
             for (double number : x[0]) y.push_back(number * number);
             return y;
           }},
  });
}

const bool added[] = {add_unary(), add_binary(), add_others()};

const bool errors = add_error_cases({
    error_case<ShapeError>("add/shapes",
                           [] {
                             zeros({3, 4}) + zeros({5});
                           },
                           {"[add]", "[3, 4]", "[5]"}),
    error_case<ShapeError>("where/condition", [] { where(zeros({3}), zeros({3}), zeros({3})); }, {"[where]", "bool"}),
    error_case<GraphError>("where/numbers", [] { where(zeros({3}, DType::boolean), 1.0, 0.0); }, {"[where]"}),
    error_case<GraphError>("add/numbers", [] { add(1.0, 2.0); }, {"numbers"}),
    error_case<ShapeError>(
        "mul/devices",
        [] {
          const std::vector<float> numbers(3);
          Tensor::from<float>(numbers, {3}) * Tensor::from<float>(numbers, {3}, {DeviceType::cpu, 1});
        },
        {"[mul]", "cpu:1"}),
    error_case<GraphError>("exp/undefined", [] { exp(Tensor()); }, {"[exp]", "undefined"}),
});

}  // namespace
}  // namespace bonfire::op_test::cases_elementwise
