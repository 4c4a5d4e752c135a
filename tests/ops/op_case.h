#pragma once
// The table that drives all op tests. Each op family adds rows in its own file, cases_FAMILY.cpp; op_table_test.cpp
// checks every row: specs are those expected, values are the reference's, gradients are finite differences in f64, bf16
// is near f32, a second run gives the same bits, and CUDA gives what the CPU gives.
//
//   const bool added = add_op_cases({
//       {.name = "linear/bias",
//        .inputs = {floats({5, 7}), floats({3, 7}), floats({3})},
//        .call = [](const Inputs& x) { return linear(x[0], x[1], x[2]); },
//        .shapes = {{5, 3}}},
//   });
//   const bool errors = add_error_cases({
//       error_case<ShapeError>("linear/columns", [] { linear(zeros({5, 7}), zeros({3, 6})); }, {"[linear]", "[3, 6]"}),
//   });

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bonfire/graph/node.h"
#include "bonfire/graph/tensor.h"

namespace bonfire::op_test {

using Inputs = std::vector<Tensor>;
using Numbers = std::vector<double>;  // a tensor's elements, row-major

// One input of a row and how its elements are drawn (from a fixed seed).
struct InputCase {
  Shape shape;
  DType dtype = DType::f32;  // f32 stands for the type under test: f64 for gradients, bf16 for the comparison with it
  double low = -1, high = 1;
  double gap = 0;         // no element closer to 0 than this: keeps clear of a kink there
  bool distinct = false;  // evenly spread and shuffled: no ties, for max, sorting and pooling
  bool differentiable = true;
  Numbers values = {};  // instead of drawing
};

// Uniform in [low, high).
inline InputCase floats(const Shape& shape, double low = -1, double high = 1) {
  return {.shape = shape, .low = low, .high = high};
}
inline InputCase floats_away_from_zero(const Shape& shape, double gap = 0.1) { return {.shape = shape, .gap = gap}; }
inline InputCase distinct_floats(const Shape& shape) { return {.shape = shape, .distinct = true}; }
inline InputCase constant_floats(const Shape& shape, double low = -1, double high = 1) {  // no gradient is asked for
  return {.shape = shape, .low = low, .high = high, .differentiable = false};
}
// Whole numbers in [low, high).
inline InputCase integers(const Shape& shape, int64_t low, int64_t high, DType dtype = DType::i64) {
  return {.shape = shape,
          .dtype = dtype,
          .low = static_cast<double>(low),
          .high = static_cast<double>(high),
          .differentiable = false};
}
inline InputCase booleans(const Shape& shape) { return integers(shape, 0, 2, DType::boolean); }
inline InputCase given(const Shape& shape, Numbers values, DType dtype = DType::f32, bool differentiable = true) {
  return {.shape = shape, .dtype = dtype, .differentiable = differentiable, .values = std::move(values)};
}

// The op under test: a function of the inputs that returns a Tensor or a range of them.
class Call {
 public:
  template <std::invocable<const Inputs&> F>
  Call(F function)
      : function_([function = std::move(function)](const Inputs& inputs) -> std::vector<Tensor> {
          auto result = function(inputs);
          if constexpr (std::convertible_to<decltype(result), Tensor>) {
            return {result};
          } else {
            return {result.begin(), result.end()};
          }
        }) {}
  std::vector<Tensor> operator()(const Inputs& inputs) const { return function_(inputs); }

 private:
  std::function<std::vector<Tensor>(const Inputs&)> function_;
};

// The first output, computed in doubles from the elements of the inputs by other means.
using Reference = std::function<Numbers(const std::vector<Numbers>&)>;

struct OpCase {
  std::string name;  // "op/what is special about this row"
  std::vector<InputCase> inputs = {};
  Call call;
  std::vector<Shape> shapes = {};  // of all outputs
  std::vector<DType> dtypes = {};  // of all outputs for f32 inputs; empty means f32
  Reference reference = nullptr;
  bool differentiable = true;        // false: gradients are not checked
  bool twice = false;                // check the second derivative too
  bool runs_in_bf16 = true;          // false: rows whose outputs jump (argmax, floor), or that have no bf16
  double bf16_tolerance = 2e-2;      // of the largest element of the f32 result
  double gradient_tolerance = 1e-6;  // relative, in f64
  bool runs_on_cuda = true;          // false: the row names a device of its own
  double cuda_tolerance = 1e-4;      // of the largest element, in f32
};

// A call that must fail: with which error, and what its message must contain.
struct ErrorCase {
  std::string name;
  std::function<void()> call;
  std::function<bool(const std::exception&)> has_type;
  std::vector<std::string> texts;
};
template <class E>
ErrorCase error_case(std::string name, std::function<void()> call, std::vector<std::string> texts) {
  return {std::move(name), std::move(call),
          [](const std::exception& error) { return dynamic_cast<const E*>(&error) != nullptr; }, std::move(texts)};
}

// Return true, so that a namespace-scope constant can call them.
bool add_op_cases(std::vector<OpCase> cases);
bool add_error_cases(std::vector<ErrorCase> cases);

const std::vector<OpCase>& op_cases();
const std::vector<ErrorCase>& error_cases();

// The elements of one input of a row: the same on every call. `salt` tells inputs apart.
Numbers draw(const InputCase& input, uint64_t salt);

// A tensor of those elements, converted to `dtype`.
Tensor make_tensor(const Numbers& values, const Shape& shape, DType dtype, Device device = {});

}  // namespace bonfire::op_test
