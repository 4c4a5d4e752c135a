#include "tests/ops/row_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "bonfire/autodiff/backward.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::op_test {

std::string op_of(const std::string& row_name) { return row_name.substr(0, row_name.find('/')); }

Inputs make_inputs(const OpCase& row, DType dtype, Device device, bool rounded) {
  Inputs inputs;
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    const InputCase& input = row.inputs[i];
    Numbers numbers = draw(input, i);
    if (rounded && is_floating(input.dtype))
      for (double& number : numbers) number = static_cast<float>(bfloat16(static_cast<float>(number)));
    inputs.push_back(make_tensor(numbers, input.shape, input.dtype == DType::f32 ? dtype : input.dtype, device));
  }
  return inputs;
}

std::vector<bool> differentiable_inputs(const OpCase& row) {
  std::vector<bool> flags;
  for (const InputCase& input : row.inputs) flags.push_back(input.dtype == DType::f32 && input.differentiable);
  return flags;
}

bool has_gradient(const OpCase& row) {
  std::vector<bool> flags = differentiable_inputs(row);
  return row.differentiable && std::find(flags.begin(), flags.end(), true) != flags.end();
}

std::vector<Tensor> call(const OpCase& row, const Inputs& inputs) {
  manual_seed(1);
  return row.call(inputs);
}

std::vector<Tensor> outputs_and_gradients(const OpCase& row, Inputs inputs) {
  std::vector<bool> flags = differentiable_inputs(row);
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (flags[i]) wanted.push_back(inputs[i].set_requires_grad(true));
  std::vector<Tensor> results = call(row, inputs);
  if (!has_gradient(row)) return results;
  Tensor total;
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& output = results[i];
    if (!is_floating(output.dtype())) continue;
    Numbers weights = draw(floats(output.shape()), 100 + i);
    Tensor part = sum(output.to(DType::f32) * make_tensor(weights, output.shape(), DType::f32, output.device()));
    total = total.defined() ? total + part : part;
  }
  for (Tensor& gradient : grad(total, wanted))
    if (gradient.defined()) results.push_back(gradient);
  return results;
}

namespace {
double largest(const Numbers& numbers) {
  double result = 0;
  for (double number : numbers)
    if (std::isfinite(number)) result = std::max(result, std::abs(number));
  return result;
}
}  // namespace

void expect_near(const Numbers& found, const Numbers& expected, double tolerance, double floor,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double allowed = tolerance * std::max(floor, largest(expected));
  for (size_t i = 0; i < found.size(); ++i) {
    bool same = found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]));
    ASSERT_TRUE(same || std::abs(found[i] - expected[i]) <= allowed)
        << what << ": element " << i << " is " << found[i] << ", expected " << expected[i] << " within " << allowed;
  }
}

void expect_near(const std::vector<Tensor>& found, const std::vector<Tensor>& expected, double tolerance,
                 const std::string& what) {
  constexpr double kFloor = 0.05;  // what cancels to nothing leaves rounding, fused products other than separate ones
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    expect_near(found[i].to_vector<double>(), expected[i].to_vector<double>(), tolerance, kFloor,
                what + ", result " + std::to_string(i));
}

void check_bf16(const OpCase& row) {
  expect_near(outputs_and_gradients(row, make_inputs(row, DType::bf16, {}, true)),
              outputs_and_gradients(row, make_inputs(row, DType::f32, {}, true)), row.bf16_tolerance, "bf16");
}

}  // namespace bonfire::op_test
