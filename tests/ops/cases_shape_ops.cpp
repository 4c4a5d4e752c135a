// Rows for ops/shape_ops.h.

#include "bonfire/base/error.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/shape_ops.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_shape_ops {
namespace {

// What a permutation does, one element after the other.
Numbers permute_reference(const Numbers& x, const Shape& shape, const Shape& axes) {
  Shape strides = row_major_strides(shape), extents = axes, steps = axes;
  for (int i = 0; i < axes.rank(); ++i) {
    extents[i] = shape[static_cast<int>(axes[i])];
    steps[i] = strides[static_cast<int>(axes[i])];
  }
  Numbers result;
  for (int64_t i = 0; i < extents.count(); ++i) {
    int64_t rest = i, at = 0;
    for (int axis = extents.rank() - 1; axis >= 0; --axis) {
      at += rest % extents[axis] * steps[axis];
      rest /= extents[axis];
    }
    result.push_back(x[static_cast<size_t>(at)]);
  }
  return result;
}

OpCase permute_row(const char* variant, const Shape& shape, const Shape& axes) {
  Shape result = shape;
  for (int i = 0; i < axes.rank(); ++i) result[i] = shape[static_cast<int>(axes[i])];
  return {.name = std::string("permute/") + variant,
          .inputs = {floats(shape)},
          .call = [axes](const Inputs& x) { return permute(x[0], axes); },
          .shapes = {result},
          .reference = [shape, axes](const std::vector<Numbers>& x) { return permute_reference(x[0], shape, axes); },
          .twice = true};
}

bool add_rearranging() {
  return add_op_cases({
      {.name = "reshape/merge",
       .inputs = {floats({2, 3, 4})},
       .call =
           [](const Inputs& x) {
             return reshape(x[0], {6, -1});
           },
       .shapes = {{6, 4}},
       .reference = [](const std::vector<Numbers>& x) { return x[0]; },
       .twice = true},
      {.name = "reshape/to_scalar",
       .inputs = {floats({1, 1})},
       .call = [](const Inputs& x) { return reshape(x[0], {}); },
       .shapes = {{}}},
      {.name = "reshape/empty",
       .inputs = {floats({0, 3})},
       .call =
           [](const Inputs& x) {
             return reshape(x[0], {3, 0});
           },
       .shapes = {{3, 0}}},
      {.name = "reshape/booleans",
       .inputs = {booleans({2, 3})},
       .call =
           [](const Inputs& x) {
             return reshape(x[0], {3, 2});
           },
       .shapes = {{3, 2}},
       .dtypes = {DType::boolean},
       .reference = [](const std::vector<Numbers>& x) { return x[0]; }},
      {.name = "flatten/from_one",
       .inputs = {floats({2, 3, 4})},
       .call = [](const Inputs& x) { return flatten(x[0], 1); },
       .shapes = {{2, 12}}},
      {.name = "flatten/middle",
       .inputs = {floats({2, 3, 4, 5})},
       .call = [](const Inputs& x) { return flatten(x[0], 1, -2); },
       .shapes = {{2, 12, 5}}},
      {.name = "flatten/scalar",
       .inputs = {floats({})},
       .call = [](const Inputs& x) { return flatten(x[0]); },
       .shapes = {{1}}},
      {.name = "squeeze/axis",
       .inputs = {floats({2, 1, 3})},
       .call = [](const Inputs& x) { return squeeze(x[0], -2); },
       .shapes = {{2, 3}}},
      {.name = "unsqueeze/last",
       .inputs = {floats({2, 3})},
       .call = [](const Inputs& x) { return unsqueeze(x[0], -1); },
       .shapes = {{2, 3, 1}}},
      {.name = "unsqueeze/first",
       .inputs = {floats({2, 3})},
       .call = [](const Inputs& x) { return unsqueeze(x[0], 0); },
       .shapes = {{1, 2, 3}}},
      permute_row("matrix", {5, 7}, {1, 0}),
      permute_row("large_matrix", {67, 131}, {1, 0}),
      permute_row("heads", {2, 5, 3, 4}, {0, 2, 1, 3}),
      permute_row("channels_last", {2, 3, 4, 5}, {0, 2, 3, 1}),
      permute_row("batched_matrix", {3, 33, 35}, {0, 2, 1}),
      permute_row("reversed", {2, 3, 4, 5}, {3, 2, 1, 0}),
      permute_row("moves_only_ones", {1, 3, 1, 5}, {1, 2, 0, 3}),
      permute_row("empty", {0, 3, 2}, {2, 1, 0}),
      {.name = "permute/bytes",
       .inputs = {integers({40, 70}, 0, 256, DType::u8)},
       .call =
           [](const Inputs& x) {
             return permute(x[0], {1, 0});
           },
       .shapes = {{70, 40}},
       .dtypes = {DType::u8},
       .reference =
           [](const std::vector<Numbers>& x) {
             return permute_reference(x[0], {40, 70}, {1, 0});
           }},
      {.name = "transpose/last_two",
       .inputs = {floats({2, 3, 4})},
       .call = [](const Inputs& x) { return transpose(x[0], -1, -2); },
       .shapes = {{2, 4, 3}},
       .reference =
           [](const std::vector<Numbers>& x) {
             return permute_reference(x[0], {2, 3, 4}, {0, 2, 1});
           }},
      {.name = "broadcast_to/rows",
       .inputs = {given({3}, {1, 2, 3})},
       .call =
           [](const Inputs& x) {
             return broadcast_to(x[0], {2, 3});
           },
       .shapes = {{2, 3}},
       .reference = [](const std::vector<Numbers>&) { return Numbers{1, 2, 3, 1, 2, 3}; },
       .twice = true},
      {.name = "broadcast_to/columns",
       .inputs = {given({2, 1}, {1, 2})},
       .call =
           [](const Inputs& x) {
             return broadcast_to(x[0], {2, 3});
           },
       .shapes = {{2, 3}},
       .reference = [](const std::vector<Numbers>&) { return Numbers{1, 1, 1, 2, 2, 2}; }},
      {.name = "broadcast_to/scalar",
       .inputs = {floats({})},
       .call =
           [](const Inputs& x) {
             return broadcast_to(x[0], {2, 67});
           },
       .shapes = {{2, 67}}},
      {.name = "broadcast_to/empty",
       .inputs = {floats({1, 3})},
       .call =
           [](const Inputs& x) {
             return broadcast_to(x[0], {0, 3});
           },
       .shapes = {{0, 3}}},
  });
}

Tensor second_part(const std::vector<Tensor>& parts) { return parts[1]; }

bool add_cutting() {
  return add_op_cases({
      {.name = "concat/columns",
       .inputs = {given({2, 2}, {1, 2, 3, 4}), given({2, 1}, {5, 6}), given({2, 2}, {7, 8, 9, 10})},
       .call = [](const Inputs& x) { return concat(x, 1); },
       .shapes = {{2, 5}},
       .reference = [](const std::vector<Numbers>&) { return Numbers{1, 2, 5, 7, 8, 3, 4, 6, 9, 10}; },
       .twice = true},
      {.name = "concat/rows",
       .inputs = {floats({2, 67}), floats({1, 67})},
       .call =
           [](const Inputs& x) {
             return concat({x[0], x[1]}, 0);
           },
       .shapes = {{3, 67}}},
      {.name = "concat/with_empty",
       .inputs = {floats({2, 3}), floats({2, 0})},
       .call = [](const Inputs& x) { return concat(x, -1); },
       .shapes = {{2, 3}}},
      {.name = "concat/promotes",
       .inputs = {floats({2}), integers({3}, 0, 9)},
       .call = [](const Inputs& x) { return concat(x, 0); },
       .shapes = {{5}}},
      {.name = "stack/new_axis",
       .inputs = {given({2}, {1, 2}), given({2}, {3, 4})},
       .call = [](const Inputs& x) { return stack(x, 1); },
       .shapes = {{2, 2}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 3, 2, 4};
           }},
      {.name = "split/sizes",
       .inputs = {floats({2, 6, 3})},
       .call =
           [](const Inputs& x) {
             return split(x[0], {1, 3, 2}, 1);
           },
       .shapes = {{2, 1, 3}, {2, 3, 3}, {2, 2, 3}},
       .twice = true},
      {.name = "split/chunks",
       .inputs = {floats({7, 3})},
       .call = [](const Inputs& x) { return split(x[0], 3, 0); },
       .shapes = {{3, 3}, {3, 3}, {1, 3}}},
      {.name = "split/one_part_used",
       .inputs = {given({6}, {1, 2, 3, 4, 5, 6})},
       .call = [](const Inputs& x) { return second_part(split(x[0], 2, 0)); },
       .shapes = {{2}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{3, 4};
           }},
      {.name = "split/empty_part",
       .inputs = {floats({4})},
       .call =
           [](const Inputs& x) {
             return split(x[0], {0, 4}, 0);
           },
       .shapes = {{0}, {4}}},
      {.name = "slice/middle",
       .inputs = {given({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8})},
       .call = [](const Inputs& x) { return slice(x[0], 1, 1, 3); },
       .shapes = {{2, 2}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{2, 3, 6, 7};
           },
       .twice = true},
      {.name = "slice/step",
       .inputs = {given({7}, {0, 1, 2, 3, 4, 5, 6})},
       .call = [](const Inputs& x) { return slice(x[0], 0, 1, kToEnd, 2); },
       .shapes = {{3}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{1, 3, 5};
           },
       .twice = true},
      {.name = "slice/step_of_rows",
       .inputs = {floats({9, 5})},
       .call = [](const Inputs& x) { return slice(x[0], 0, 0, 8, 3); },
       .shapes = {{3, 5}}},
      {.name = "slice/from_end",
       .inputs = {given({5}, {0, 1, 2, 3, 4})},
       .call = [](const Inputs& x) { return slice(x[0], 0, -2); },
       .shapes = {{2}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{3, 4};
           }},
      {.name = "slice/clamped",
       .inputs = {floats({5})},
       .call = [](const Inputs& x) { return slice(x[0], 0, 3, 100); },
       .shapes = {{2}}},
      {.name = "slice/nothing",
       .inputs = {floats({5, 2})},
       .call = [](const Inputs& x) { return slice(x[0], 0, 4, 2); },
       .shapes = {{0, 2}}},
      {.name = "pad/image",
       .inputs = {given({1, 2, 2}, {1, 2, 3, 4})},
       .call =
           [](const Inputs& x) {
             return pad(x[0], {{0, 0}, {1, 0}, {1, 2}});
           },
       .shapes = {{1, 3, 5}},
       .reference = [](const std::vector<Numbers>&) { return Numbers{0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 4, 0, 0}; },
       .twice = true},
      {.name = "pad/value",
       .inputs = {given({2}, {1, 2})},
       .call =
           [](const Inputs& x) {
             return pad(x[0], {{1, 1}}, -7);
           },
       .shapes = {{4}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{-7, 1, 2, -7};
           }},
      {.name = "pad/outer_axis",
       .inputs = {floats({2, 67})},
       .call =
           [](const Inputs& x) {
             return pad(x[0], {{2, 1}, {0, 0}});
           },
       .shapes = {{5, 67}}},
      {.name = "pad/empty",
       .inputs = {floats({0, 2})},
       .call =
           [](const Inputs& x) {
             return pad(x[0], {{1, 0}, {0, 1}}, 3);
           },
       .shapes = {{1, 3}},
       .reference =
           [](const std::vector<Numbers>&) {
             return Numbers{3, 3, 3};
           }},
      {.name = "put_slice/rows",
       .inputs = {given({3, 2}, {1, 2, 3, 4, 5, 6}), given({1, 2}, {7, 8})},
       .call =
           [](const Inputs& x) {
             return trace_op(find_op("put_slice"), x, {{"axis", 0}, {"begin", 1}});
           },
       .shapes = {{3, 2}},
       .reference = [](const std::vector<Numbers>&) { return Numbers{1, 2, 7, 8, 5, 6}; },
       .differentiable = false},
      {.name = "put_slice/columns_over_the_memory_of_the_whole",
       .inputs = {given({2, 3}, {1, 2, 3, 4, 5, 6}), given({2, 2}, {7, 8, 9, 10})},
       .call =
           [](const Inputs& x) {
             return trace_op(find_op("put_slice"), std::vector<Tensor>{-x[0], x[1]}, {{"axis", 1}, {"begin", 1}});
           },
       .shapes = {{2, 3}},
       .reference = [](const std::vector<Numbers>&) { return Numbers{-1, 7, 8, -4, 9, 10}; },
       .differentiable = false},
      {.name = "copy_to_device/there_and_back",
       .inputs = {floats({3, 5})},
       .call =
           [](const Inputs& x) {
             return x[0].to(Device{DeviceType::cpu, 1}).to(x[0].device());
           },
       .shapes = {{3, 5}},
       .reference = [](const std::vector<Numbers>& x) { return x[0]; },
       .twice = true},
  });
}

const bool added[] = {add_rearranging(), add_cutting()};

const bool errors = add_error_cases({
    error_case<ShapeError>("reshape/count",
                           [] {
                             reshape(zeros({2, 3}), {4});
                           },
                           {"[reshape]", "[2, 3]", "[4]"}),
    error_case<ShapeError>("reshape/two_unknown",
                           [] {
                             reshape(zeros({4}), {-1, -1});
                           },
                           {"[reshape]", "[-1, -1]"}),
    error_case<ShapeError>("reshape/no_fit",
                           [] {
                             reshape(zeros({2, 3}), {4, -1});
                           },
                           {"[reshape]", "[4, -1]"}),
    error_case<ShapeError>("permute/axes",
                           [] {
                             permute(zeros({2, 3}), {0, 0});
                           },
                           {"[permute]", "[0, 0]", "[2, 3]"}),
    error_case<ShapeError>("transpose/axis",
                           [] {
                             transpose(zeros({2, 3}), 0, 2);
                           },
                           {"[transpose]", "axis 2"}),
    error_case<ShapeError>("broadcast_to/shape",
                           [] {
                             broadcast_to(zeros({2, 3}), {3, 2});
                           },
                           {"[broadcast_to]", "[2, 3]", "[3, 2]"}),
    error_case<ShapeError>("concat/extents",
                           [] {
                             concat({zeros({2, 3}), zeros({3, 3})}, 1);
                           },
                           {"[concat]", "[2, 3]", "[3, 3]"}),
    error_case<ShapeError>("concat/none", [] { concat(std::vector<Tensor>(), 0); }, {"[concat]"}),
    error_case<ShapeError>("split/sizes",
                           [] {
                             split(zeros({5}), {2, 2}, 0);
                           },
                           {"[split]", "[5]", "4"}),
    error_case<ShapeError>("slice/step", [] { slice(zeros({5}), 0, 0, 5, 0); }, {"[slice]", "step", "[5]"}),
    error_case<ShapeError>("pad/axes",
                           [] {
                             pad(zeros({2, 3}), {{1, 1}});
                           },
                           {"[pad]", "[2, 3]"}),
    error_case<ShapeError>("pad/negative",
                           [] {
                             pad(zeros({3}), {{-1, 0}});
                           },
                           {"[pad]", "[-1]", "[3]"}),
    error_case<ShapeError>(
        "put_slice/beyond_the_end",
        [] {
          trace_op(find_op("put_slice"), {zeros({3, 2}), zeros({2, 2})}, {{"axis", 0}, {"begin", 2}});
        },
        {"[put_slice]", "[2, 2]", "2", "[3, 2]"}),
    error_case<ShapeError>("squeeze/extent",
                           [] {
                             squeeze(zeros({2, 3}), 1);
                           },
                           {"[squeeze]", "[2, 3]"}),
    error_case<ShapeError>("flatten/order",
                           [] {
                             flatten(zeros({2, 3}), 1, 0);
                           },
                           {"[flatten]", "[2, 3]"}),
});

}  // namespace
}  // namespace bonfire::op_test::cases_shape_ops
