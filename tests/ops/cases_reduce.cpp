// Rows for ops/reduce.h.

#include <algorithm>
#include <cmath>
#include <limits>

#include "bonfire/base/error.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/reduce.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_reduce {
namespace {

using Fold = double (*)(double, double);

// Folds the axes one element after the other, whatever the kernels do.
Numbers fold_reference(const Numbers& x, const Shape& shape, const Shape& axes, double start, Fold fold) {
  bool reduced[Shape::kMaxRank] = {};
  for (int64_t axis : axes) reduced[axis < 0 ? axis + shape.rank() : axis] = true;
  if (axes.rank() == 0) std::fill_n(reduced, Shape::kMaxRank, true);
  int64_t outputs = 1;
  for (int i = 0; i < shape.rank(); ++i) outputs *= reduced[i] ? 1 : shape[i];
  Numbers result(static_cast<size_t>(outputs), start);
  for (int64_t i = 0; i < shape.count(); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      int64_t index = rest % shape[axis];
      rest /= shape[axis];
      if (reduced[axis]) continue;
      at += index * stride;
      stride *= shape[axis];
    }
    double& target = result[static_cast<size_t>(at)];
    target = fold(target, x[static_cast<size_t>(i)]);
  }
  return result;
}

struct Reduction {
  const char* name;
  Tensor (*op)(const Tensor&, const Shape&, ReduceOptions);
  double start;
  Fold fold;
};

const Reduction kReductions[] = {
    {"sum", sum, 0, [](double a, double x) { return a + x; }},
    {"mean", mean, 0, [](double a, double x) { return a + x; }},
    {"max", max, -std::numeric_limits<double>::infinity(), [](double a, double x) { return std::max(a, x); }},
    {"min", min, std::numeric_limits<double>::infinity(), [](double a, double x) { return std::min(a, x); }},
};

struct Variant {
  const char* name;
  Shape shape, axes, result;
  bool keepdim = false;
};

const Variant kVariants[] = {
    {"all", {3, 5}, {}, {}},
    {"all_keepdim", {3, 5}, {}, {1, 1}, true},
    {"scalar", {}, {}, {}},
    {"last", {4, 37}, {1}, {4}},
    {"first", {37, 5}, {0}, {5}},
    {"first_odd_columns", {9, 301}, {0}, {301}},
    {"middle_keepdim", {2, 5, 3}, {1}, {2, 1, 3}, true},
    {"outer_axes", {3, 4, 5}, {0, 2}, {4}},
    {"per_channel", {2, 3, 4, 5}, {0, 2, 3}, {3}},
    {"negative_axes", {2, 3, 4, 5}, {-1, -3}, {2, 4}},
    {"nothing_to_do", {3, 1, 5}, {1}, {3, 5}},
    {"long_run", {2, 40000}, {1}, {2}},      // cut into pieces
    {"long_columns", {20000, 3}, {0}, {3}},  // cut into pieces, few columns
    {"long_all", {7, 11, 1031}, {}, {}},     // odd everywhere
    {"many_short_runs", {700, 3, 2}, {0, 2}, {3}},
    {"short_runs_in_tiles", {5, 100, 7}, {0, 2}, {100}},  // 700 columns, not a multiple of a tile
};

OpCase reduction_row(const Reduction& reduction, const Variant& variant) {
  bool is_mean = std::string(reduction.name) == "mean";
  bool is_extremum = std::isinf(reduction.start);
  bool large = variant.shape.count() > 10000;
  return {.name = std::string(reduction.name) + "/" + variant.name,
          .inputs = {is_extremum ? distinct_floats(variant.shape) : floats(variant.shape)},
          .call = [op = reduction.op,
                   variant](const Inputs& x) { return op(x[0], variant.axes, {.keepdim = variant.keepdim}); },
          .shapes = {variant.result},
          .reference =
              [reduction, variant, is_mean](const std::vector<Numbers>& x) {
                Numbers y = fold_reference(x[0], variant.shape, variant.axes, reduction.start, reduction.fold);
                double count = static_cast<double>(x[0].size()) / static_cast<double>(y.size());
                for (double& number : y) number /= is_mean ? count : 1.0;
                return y;
              },
          .differentiable = !large,
          .twice = !large,
          // Rounding makes ties of neighbours; then bf16 shares a gradient that f32 does not, so values alone would do,
          // but the row checks both.
          .runs_in_bf16 = !is_extremum || !large};
}

bool add_reductions() {
  std::vector<OpCase> rows;
  for (const Reduction& reduction : kReductions)
    for (const Variant& variant : kVariants) rows.push_back(reduction_row(reduction, variant));
  return add_op_cases(std::move(rows));
}

bool add_others() {
  return add_op_cases({
      {.name = "sum/empty",
       .inputs = {floats({0, 3})},
       .call = [](const Inputs& x) { return sum(x[0], {0}); },
       .shapes = {{3}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{0, 0, 0};
           }},
      {.name = "sum/empty_result",
       .inputs = {floats({0, 3})},
       .call = [](const Inputs& x) { return sum(x[0], {1}); },
       .shapes = {{0}}},
      {.name = "sum/empty_columns",
       .inputs = {floats({3, 0})},
       .call = [](const Inputs& x) { return sum(x[0], {0}); },
       .shapes = {{0}}},
      {.name = "sum/integers",
       .inputs = {given({2, 3}, {1, 2, 3, 4, 5, 2147483647}, DType::i32, false)},
       .call = [](const Inputs& x) { return sum(x[0], {1}); },
       .shapes = {{2}},
       .dtypes = {DType::i64},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{6, 2147483656.0};
           }},
      {.name = "sum/booleans",
       .inputs = {given({5}, {1, 0, 1, 1, 0}, DType::boolean, false)},
       .call = [](const Inputs& x) { return sum(x[0]); },
       .shapes = {{}},
       .dtypes = {DType::i64},
       .reference = [](const std::vector<Numbers>&) { return Numbers{3}; }},
      {.name = "sum/bytes",
       .inputs = {integers({300, 2}, 0, 256, DType::u8)},
       .call = [](const Inputs& x) { return sum(x[0], {0}); },
       .shapes = {{2}},
       .dtypes = {DType::i64}},
      {.name = "max/integers",
       .inputs = {given({2, 3}, {-5, -2, -3, 4, 9, 9}, DType::i64, false)},
       .call = [](const Inputs& x) { return max(x[0], {1}); },
       .shapes = {{2}},
       .dtypes = {DType::i64},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{-2, 9};
           }},
      {.name = "min/bytes",
       .inputs = {given({5}, {7, 255, 3, 4, 9}, DType::u8, false)},
       .call = [](const Inputs& x) { return min(x[0]); },
       .shapes = {{}},
       .dtypes = {DType::u8},
       .reference = [](const std::vector<Numbers>&) { return Numbers{3}; }},
      {.name = "argmax/last",
       .inputs = {given({2, 4}, {1, 7, 7, 2, -3, -1, -2, -1})},
       .call = [](const Inputs& x) { return argmax(x[0], 1); },
       .shapes = {{2}},
       .dtypes = {DType::i64},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 1};
           },  // the first of equals
       .differentiable = false},
      {.name = "argmax/first_keepdim",
       .inputs = {distinct_floats({17, 301})},
       .call = [](const Inputs& x) { return argmax(x[0], 0, {.keepdim = true}); },
       .shapes = {{1, 301}},
       .dtypes = {DType::i64},
       .differentiable = false},
      {.name = "argmin/middle",
       .inputs = {given({1, 3, 2}, {5, 1, 2, 1, 2, 0})},
       .call = [](const Inputs& x) { return argmin(x[0], 1); },
       .shapes = {{1, 2}},
       .dtypes = {DType::i64},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 2};
           },
       .differentiable = false},
      {.name = "top_k/last",
       .inputs = {distinct_floats({3, 11})},
       .call =
           [](const Inputs& x) {
             TopK top = top_k(x[0], 5);
             return std::vector{top.values, top.indices};
           },
       .shapes = {{3, 5}, {3, 5}},
       .dtypes = {DType::f32, DType::i64},
       .twice = true},
      {.name = "top_k/first_axis",
       .inputs = {distinct_floats({7, 3})},
       .call = [](const Inputs& x) { return top_k(x[0], 2, 0).values; },
       .shapes = {{2, 3}}},
      {.name = "top_k/equal_elements",
       .inputs = {given({6}, {1, 3, 3, 2, 3, 2}, DType::f32, false)},
       .call = [](const Inputs& x) { return top_k(x[0], 5).indices; },
       .shapes = {{5}},
       .dtypes = {DType::i64},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 2, 4, 3, 5};
           }},
      {.name = "top_k/none",
       .inputs = {floats({2, 3})},
       .call = [](const Inputs& x) { return top_k(x[0], 0).values; },
       .shapes = {{2, 0}}},
      {.name = "sum_to/row",
       .inputs = {floats({2, 3, 5})},
       .call =
           [](const Inputs& x) {
             return sum_to(x[0], {{3, 1}, x[0].dtype(), {}});
           },
       .shapes = {{3, 1}},
       .runs_on_cuda = false},  // names its device
  });
}

const bool added[] = {add_reductions(), add_others()};

const bool errors = add_error_cases({
    error_case<ShapeError>("sum/axis",
                           [] {
                             sum(zeros({3, 4}), {2});
                           },
                           {"[sum]", "axis 2"}),
    error_case<ShapeError>("sum/axis_twice",
                           [] {
                             sum(zeros({3, 4}), {1, -1});
                           },
                           {"[sum]", "twice", "[3, 4]"}),
    error_case<ShapeError>("mean/integers", [] { mean(zeros({3}, DType::i64)); }, {"[mean]", "i64 [3]", "cast"}),
    error_case<ShapeError>("max/empty",
                           [] {
                             max(zeros({3, 0}), {1});
                           },
                           {"[max]", "[3, 0]"}),
    error_case<ShapeError>("argmax/empty", [] { argmax(zeros({0}), 0); }, {"[argmax]", "[0]"}),
    error_case<ShapeError>("top_k/too_many",
                           [] {
                             top_k(zeros({3, 4}), 5);
                           },
                           {"[top_k]", "5", "[3, 4]"}),
});

}  // namespace
}  // namespace bonfire::op_test::cases_reduce
