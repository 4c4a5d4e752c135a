// Rows of the op table: sums of squares and gradient clipping. That they fit together, also as slices, is in
// tests/optim/norms_test.cpp.
#include <cmath>

#include "bonfire/ops/optimizer_update.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_clipping {
namespace {

// Of the kernels' blocks, one that is not full, one, none, and several.
const std::vector<InputCase> kGradients = {floats({7}), floats({32, 64}), floats({0}), floats({3, 5001})};
const std::vector<Shape> kClipped = {{}, {7}, {32, 64}, {0}, {3, 5001}};

// The norm and the clipped gradients, whose own squares are used: one op.
Tensors clipped(const Inputs& gradients, double max_norm) {
  return clip_gradients(gradients, gradient_squares(gradients), max_norm);
}

Numbers norm_of(const std::vector<Numbers>& gradients) {
  double sum = 0;
  for (const Numbers& gradient : gradients)
    for (double number : gradient) sum += number * number;
  return {std::sqrt(sum)};
}

const bool clipping_cases = add_op_cases({
    {.name = "clip_gradients/too_long",
     .inputs = kGradients,
     .call = [](const Inputs& x) { return clipped(x, 0.5); },
     .shapes = kClipped,
     .reference = norm_of,
     .differentiable = false},
    {.name = "clip_gradients/short_enough",
     .inputs = kGradients,
     .call = [](const Inputs& x) { return clipped(x, 1e6); },
     .shapes = kClipped,
     .reference = norm_of,
     .differentiable = false},
    {.name = "clip_gradients/all_empty",
     .inputs = {floats({0}), floats({0, 3})},
     .call = [](const Inputs& x) { return clipped(x, 0.5); },
     .shapes = {{}, {0}, {0, 3}},
     .reference = norm_of,
     .differentiable = false},
    {.name = "clip_gradients/of_two_types",
     .inputs = {floats({300}), {.shape = {5, 70}, .dtype = DType::bf16}},
     .call = [](const Inputs& x) { return clipped(x, 0.5); },
     .shapes = {{}, {300}, {5, 70}},
     .dtypes = {DType::f32, DType::f32, DType::bf16},
     .differentiable = false},
    {.name = "gradient_squares/then_clipped",  // they are an output, so that the two stay two ops
     .inputs = kGradients,
     .call =
         [](const Inputs& x) {
           std::vector<Tensor> results = {gradient_squares(x)};
           for (const Tensor& one : clip_gradients(x, results[0], 0.5)) results.push_back(one);
           return results;
         },
     .shapes = {{}, {}, {7}, {32, 64}, {0}, {3, 5001}},
     .dtypes = {DType::f64, DType::f32, DType::f32, DType::f32, DType::f32, DType::f32},
     .differentiable = false},
});

}  // namespace
}  // namespace bonfire::op_test::cases_clipping
