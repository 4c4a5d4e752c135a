// Checks every row of the table in op_case.h, one test per op.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <set>

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "tests/ops/finite_difference.h"
#include "tests/ops/op_case.h"
#include "tests/ops/row_checks.h"
#include "tests/support/cuda_device.h"

namespace bonfire::op_test::op_table_test {
namespace {

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

void check_repeatable(const OpCase& row) {
  std::vector<Tensor> first = outputs_and_gradients(row, make_inputs(row, DType::f32));
  std::vector<Tensor> second = outputs_and_gradients(row, make_inputs(row, DType::f32));
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(bits_of(first[i]), bits_of(second[i])) << "result " << i;
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
}  // namespace bonfire::op_test::op_table_test
