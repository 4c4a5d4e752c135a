// Rows of the op table: random tensors and dropout, whole and as slices. What makes them random is in random_test.cpp,
// and that slices of any kind are parts of the whole in random_slices_test.cpp.
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/random.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_random {
namespace {

// Begins the numbers again: the same ones on every call.
using Draw = Tensor (*)(const Shape& shape, DType dtype, Device device, const RandomSlice& slice);
Tensor plus_numbers(const Tensor& x, Draw draw, const RandomSlice& slice = {}) {
  manual_seed(7);
  return x + draw(x.shape(), x.dtype(), x.device(), slice);
}

// The same mask on every call.
Tensor dropout_again(const Tensor& x, double p, const RandomSlice& slice = {}) {
  manual_seed(7);
  return dropout(x, p, true, slice);
}

const RandomSlice kBox{.whole = {9, 130}, .offset = {2, 7}, .stride = {1, 1}};
const RandomSlice kEveryFew{.whole = {4, 9, 50}, .offset = {1, 0, 3}, .stride = {2, 3, 5}};

const bool random_cases = add_op_cases({
    {.name = "dropout/half",
     .inputs = {floats({3, 111})},
     .call = [](const Inputs& x) { return dropout_again(x[0], 0.5); },
     .shapes = {{3, 111}}},
    {.name = "dropout/nothing_dropped",
     .inputs = {floats({5})},
     .call = [](const Inputs& x) { return dropout(x[0], 0); },
     .shapes = {{5}},
     .reference = [](const std::vector<Numbers>& x) { return x[0]; }},
    {.name = "dropout/everything_dropped",
     .inputs = {floats({5})},
     .call = [](const Inputs& x) { return dropout(x[0], 1); },
     .shapes = {{5}},
     .reference = [](const std::vector<Numbers>&) { return Numbers(5); }},
    {.name = "dropout/box",
     .inputs = {floats({3, 111})},
     .call = [](const Inputs& x) { return dropout_again(x[0], 0.5, kBox); },
     .shapes = {{3, 111}}},
    {.name = "dropout/every_few",
     .inputs = {floats({2, 3, 8})},
     .call = [](const Inputs& x) { return dropout_again(x[0], 0.5, kEveryFew); },
     .shapes = {{2, 3, 8}}},
    {.name = "uniform_random/whole",
     .inputs = {floats({3, 111})},
     .call = [](const Inputs& x) { return plus_numbers(x[0], uniform_random); },
     .shapes = {{3, 111}}},
    {.name = "uniform_random/box",
     .inputs = {floats({3, 111})},
     .call = [](const Inputs& x) { return plus_numbers(x[0], uniform_random, kBox); },
     .shapes = {{3, 111}}},
    {.name = "uniform_random/every_few",
     .inputs = {floats({2, 3, 8})},
     .call = [](const Inputs& x) { return plus_numbers(x[0], uniform_random, kEveryFew); },
     .shapes = {{2, 3, 8}}},
    {.name = "normal_random/whole",
     .inputs = {floats({3, 111})},
     .call = [](const Inputs& x) { return plus_numbers(x[0], normal_random); },
     .shapes = {{3, 111}}},
    {.name = "normal_random/none",
     .inputs = {floats({0, 4})},
     .call = [](const Inputs& x) { return plus_numbers(x[0], normal_random); },
     .shapes = {{0, 4}}},
    {.name = "normal_random/box",
     .inputs = {floats({3, 111})},
     .call = [](const Inputs& x) { return plus_numbers(x[0], normal_random, kBox); },
     .shapes = {{3, 111}}},
    {.name = "normal_random/every_few",
     .inputs = {floats({2, 3, 8})},
     .call = [](const Inputs& x) { return plus_numbers(x[0], normal_random, kEveryFew); },
     .shapes = {{2, 3, 8}}},
});

}  // namespace
}  // namespace bonfire::op_test::cases_random
