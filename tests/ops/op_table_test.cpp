// Checks every row of the table in op_case.h, one test per op.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <set>

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "tests/ops/finite_difference.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test {
namespace {

std::string op_of(const std::string& row_name) { return row_name.substr(0, row_name.find('/')); }

// The inputs of a row, with `dtype` as the type under test. `rounded` makes every element one that bf16 can hold.
Inputs make_inputs(const OpCase& row, DType dtype, Device device = {}, bool rounded = false) {
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

// Outputs, then the gradients of a weighted sum of the floating ones with regard to the inputs that have one.
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

double largest(const Numbers& numbers) {
  double result = 0;
  for (double number : numbers)
    if (std::isfinite(number)) result = std::max(result, std::abs(number));
  return result;
}

// Equal up to `tolerance` × the largest expected element (at least `floor`); NaN and infinity where they are expected.
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
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    expect_near(found[i].to_vector<double>(), expected[i].to_vector<double>(), tolerance, 0.0,
                what + ", result " + std::to_string(i));
}

std::vector<std::byte> bits_of(const Tensor& tensor) {
  std::vector<std::byte> bits(tensor.spec().bytes());
  tensor.copy_to_host(bits);
  return bits;
}

void check_specs(const OpCase& row) {
  std::vector<Tensor> outputs = call(row, make_inputs(row, DType::f32));
  ASSERT_EQ(outputs.size(), row.shapes.size()) << "number of outputs";
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(to_string(outputs[i].shape()), to_string(row.shapes[i])) << "output " << i;
    DType dtype = row.dtypes.empty() ? DType::f32 : row.dtypes.at(i);
    EXPECT_EQ(name_of(outputs[i].dtype()), name_of(dtype)) << "output " << i;
    EXPECT_EQ(outputs[i].to_vector<double>().size(), static_cast<size_t>(row.shapes[i].count())) << "output " << i;
  }
}

void check_values(const OpCase& row) {
  std::vector<Numbers> numbers;
  for (size_t i = 0; i < row.inputs.size(); ++i) numbers.push_back(draw(row.inputs[i], i));
  Numbers expected = row.reference(numbers);
  expect_near(call(row, make_inputs(row, DType::f32))[0].to_vector<double>(), expected, 1e-5, 1.0, "f32 value");
  expect_near(call(row, make_inputs(row, DType::f64))[0].to_vector<double>(), expected, 1e-10, 1.0, "f64 value");
}

void check_gradients(const OpCase& row) {
  DifferenceOptions options{.differentiable = differentiable_inputs(row), .tolerance = row.gradient_tolerance};
  auto function = [&](const Inputs& inputs) { return row.call(inputs); };
  EXPECT_TRUE(gradients_are_differences(function, make_inputs(row, DType::f64), options));
  auto squared = [&](const Inputs& inputs) {  // so that linear ops have a second derivative too
    std::vector<Tensor> outputs = row.call(inputs);
    for (Tensor& output : outputs)
      if (is_floating(output.dtype())) output = square(output);
    return outputs;
  };
  if (row.twice) {
    EXPECT_TRUE(second_gradients_are_differences(squared, make_inputs(row, DType::f64), options));
  }
}

void check_bf16(const OpCase& row) {
  expect_near(outputs_and_gradients(row, make_inputs(row, DType::bf16, {}, true)),
              outputs_and_gradients(row, make_inputs(row, DType::f32, {}, true)), row.bf16_tolerance, "bf16");
}

void check_repeatable(const OpCase& row) {
  std::vector<Tensor> first = outputs_and_gradients(row, make_inputs(row, DType::f32));
  std::vector<Tensor> second = outputs_and_gradients(row, make_inputs(row, DType::f32));
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(bits_of(first[i]), bits_of(second[i])) << "result " << i;
}

// The first GPU; undefined where there is none.
std::optional<Device> cuda_device() {
  for (Device device : devices())
    if (device.type == DeviceType::cuda) return device;
  return {};
}

void check_device(const OpCase& row, Device device) {
  expect_near(outputs_and_gradients(row, make_inputs(row, DType::f32, device)),
              outputs_and_gradients(row, make_inputs(row, DType::f32)), row.cuda_tolerance, to_string(device));
  if (row.runs_in_bf16)
    expect_near(outputs_and_gradients(row, make_inputs(row, DType::bf16, device, true)),
                outputs_and_gradients(row, make_inputs(row, DType::f32, {}, true)), row.bf16_tolerance,
                to_string(device) + " in bf16");
}

// The GPU backend does not have every op: a missing kernel is told, anything else is a failure.
void check_device_where_it_has_kernels(const OpCase& row, Device device) {
  try {
    check_device(row, device);
  } catch (const DeviceError& error) {
    if (std::string(error.what()).find("there is no kernel") == std::string::npos) throw;
    std::cout << "left out on " << to_string(device) << ": " << row.name << ": " << error.what() << "\n";
  }
}

class OpTable : public ::testing::TestWithParam<std::string> {};

TEST_P(OpTable, EveryRowHolds) {
  for (const OpCase& row : op_cases()) {
    if (op_of(row.name) != GetParam()) continue;
    SCOPED_TRACE(row.name);
    check_specs(row);
    if (row.reference) check_values(row);
    if (has_gradient(row)) check_gradients(row);
    if (row.runs_in_bf16) check_bf16(row);
    check_repeatable(row);
    if (auto device = cuda_device(); device && row.runs_on_cuda) check_device_where_it_has_kernels(row, *device);
  }
}

std::vector<std::string> op_names() {
  std::set<std::string> names;
  for (const OpCase& row : op_cases()) names.insert(op_of(row.name));
  return {names.begin(), names.end()};
}

INSTANTIATE_TEST_SUITE_P(All, OpTable, ::testing::ValuesIn(op_names()), [](const auto& info) { return info.param; });

TEST(OpTableRows, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const OpCase& row : op_cases()) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

TEST(OpErrors, NameTheOpAndWhatIsWrong) {
  for (const ErrorCase& row : error_cases()) {
    SCOPED_TRACE(row.name);
    try {
      row.call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_TRUE(row.has_type(error)) << "another type of error: " << error.what();
      for (const std::string& text : row.texts)
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
            << "'" << text << "' is not in: " << error.what();
    }
  }
}

}  // namespace
}  // namespace bonfire::op_test
