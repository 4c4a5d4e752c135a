#pragma once
// What tests of the op table do with a row.

#include <string>
#include <vector>

#include "tests/ops/op_case.h"

namespace bonfire::op_test {

std::string op_of(const std::string& row_name);  // "conv2d" of "conv2d/stride"

// The inputs of a row, with `dtype` as the type under test. `rounded` makes every element one that bf16 can hold.
Inputs make_inputs(const OpCase& row, DType dtype, Device device = {}, bool rounded = false);

std::vector<bool> differentiable_inputs(const OpCase& row);
bool has_gradient(const OpCase& row);

std::vector<Tensor> call(const OpCase& row, const Inputs& inputs);

// Outputs, then the gradients of a weighted sum of the floating ones with regard to the inputs that have one.
std::vector<Tensor> outputs_and_gradients(const OpCase& row, Inputs inputs);

// Equal up to `tolerance` × the largest expected element (at least `floor`); NaN and infinity where they are expected.
void expect_near(const Numbers& found, const Numbers& expected, double tolerance, double floor,
                 const std::string& what);
void expect_near(const std::vector<Tensor>& found, const std::vector<Tensor>& expected, double tolerance,
                 const std::string& what);

void check_bf16(const OpCase& row);  // outputs and gradients against those of f32

}  // namespace bonfire::op_test
