// Slices of random tensors have the values of the whole, bit by bit: of every op, as a step of its own and as a part of
// a compiled one.

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "bonfire/graph/engine.h"
#include "bonfire/graph/variable.h"
#include "bonfire/ops/attention.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/random.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/runtime/compile.h"
#include "tests/support/cuda_device.h"
#include "tests/support/expect_error.h"

namespace bonfire::random_slices_test {
namespace {

using Numbers = std::vector<double>;

// A slice, and the shape that it has.
struct Case {
  RandomSlice slice;
  Shape shape;
};

// The elements of the slice; empty dimensions where it has none.
Tensor cut(Tensor whole, const Case& one) {
  for (int d = 0; d < one.shape.rank(); ++d) {
    const int64_t begin = one.slice.offset[d], step = one.slice.stride[d];
    whole = slice(whole, d, begin, one.shape[d] == 0 ? begin : begin + (one.shape[d] - 1) * step + 1, step);
  }
  return whole;
}

// Boxes where `box` is set, otherwise every few elements of each dimension. The last dimension is long now and then.
Case random_case(std::mt19937& random, bool box) {
  auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); };
  Case one;
  const auto rank = static_cast<int>(1 + up_to(4));
  for (int d = 0; d < rank; ++d) {
    const int64_t whole = d == rank - 1 && up_to(1) == 0 ? 250 + up_to(600) : 1 + up_to(6);
    const int64_t stride = box ? 1 : 1 + up_to(3);
    const int64_t offset = up_to(1) == 0 ? 0 : up_to(whole - 1);
    const int64_t most = (whole - offset + stride - 1) / stride;
    one.slice.whole.push_back(whole);
    one.slice.offset.push_back(offset);
    one.slice.stride.push_back(stride);
    one.shape.push_back(up_to(2) == 0 ? up_to(most) : most);
  }
  return one;
}

enum class Way { alone, compiled, op_by_op };

// Tensors like x, drawn as the slice of a whole; of the whole where there is no slice.
using Draw = std::function<std::vector<Tensor>(const Tensor& x, const RandomSlice& slice)>;

std::vector<Numbers> values_of(const Draw& draw, Way way, const Tensor& x, const RandomSlice& slice) {
  commit();
  manual_seed(17);
  set_check_numbers(way == Way::op_by_op);
  std::vector<Tensor> results;
  if (way == Way::compiled) {
    auto step = compile([&](const Tensor& input) { return draw(input, slice); });
    results = step(x);
  } else {
    results = draw(x, slice);
  }
  std::vector<Numbers> values;
  for (const Tensor& result : results) values.push_back(result.to_vector<double>());
  set_check_numbers(false);
  return values;
}

// Where numbers are drawn, and as what.
struct Place {
  Device device;
  DType dtype;
};
std::vector<Place> places() {
  std::vector<Place> all;
  for (DType dtype : {DType::f32, DType::f64, DType::bf16}) all.push_back({{}, dtype});
  if (const std::optional<Device> gpu = cuda_device())
    for (DType dtype : {DType::f32, DType::bf16}) all.push_back({*gpu, dtype});
  return all;
}

void expect_parts_of_the_whole(const Draw& draw, const Place& place) {
  SCOPED_TRACE(to_string(place.device) + ", " + std::string(name_of(place.dtype)));
  std::mt19937 random(5);
  for (Way way : {Way::alone, Way::compiled, Way::op_by_op})
    for (int i = 0; i < 24; ++i) {
      const Case one = random_case(random, i % 2 == 0);
      const Shape& whole = one.slice.whole;
      const Tensor x = reshape(arange(0, whole.count()), whole).to(place.dtype).to(place.device), own = cut(x, one);
      commit();
      const std::vector<Numbers> all = values_of(draw, way, x, {}), found = values_of(draw, way, own, one.slice);
      ASSERT_EQ(all.size(), found.size());
      for (size_t result = 0; result < all.size(); ++result) {
        const Tensor expected = cut(Tensor::from<double>(all[result], whole), one);
        ASSERT_EQ(found[result], expected.to_vector<double>())
            << to_string(one.shape) << " from " << to_string(one.slice.offset) << " on in steps of "
            << to_string(one.slice.stride) << " of " << to_string(whole) << ", result " << result;
      }
    }
}

TEST(RandomSlices, OfUniformNumbersAreThoseOfTheWhole) {
  for (const Place& place : places())
    expect_parts_of_the_whole(
        [](const Tensor& x, const RandomSlice& slice) {
          return std::vector{uniform_random(x.shape(), x.dtype(), x.device(), slice),
                             uniform_random(x.shape(), x.dtype(), x.device(), slice)};
        },
        place);
}

TEST(RandomSlices, OfNormalNumbersAreThoseOfTheWhole) {
  for (const Place& place : places())
    expect_parts_of_the_whole(
        [](const Tensor& x, const RandomSlice& slice) {
          return std::vector{normal_random(x.shape(), x.dtype(), x.device(), slice)};
        },
        place);
}

TEST(RandomSlices, OfDropoutAndItsGradientAreThoseOfTheWhole) {
  for (const Place& place : places())
    expect_parts_of_the_whole(
        [](const Tensor& x, const RandomSlice& slice) {
          Variable w(x.spec());
          w.set_requires_grad(true);
          Tensor y = dropout(w + x, 0.4, true, slice);
          sum(y * x).backward();
          return std::vector{y, w.grad()};
        },
        place);
}

// Rows of the whole are what data-parallel ranks share: rank 1 of 3 has every third row of what all have.
TEST(RandomSlices, OfARanksRowsAreThoseOfTheWholeBatch) {
  std::mt19937 random(6);
  for (int i = 0; i < 40; ++i) {
    Case one = random_case(random, i % 2 == 0);
    Shape batch = one.slice.whole;  // of all ranks
    batch[0] *= 3;
    manual_seed(18);
    const Tensor whole = dropout(ones(batch), 0.5);
    const Numbers expected = cut(slice(whole, 0, 1, kToEnd, 3), one).to_vector<double>();
    StepContext::current().random.rank = 1;
    StepContext::current().random.world = 3;
    manual_seed(18);
    const Numbers found = dropout(ones(one.shape), 0.5, true, one.slice).to_vector<double>();
    StepContext::current().random.rank = 0;
    StepContext::current().random.world = 1;
    ASSERT_EQ(found, expected) << i;
  }
}

// Some of the heads, as tensor parallel has them.
TEST(RandomSlices, OfTheDropoutOfAttentionAreThoseOfTheWhole) {
  auto attend = [](const std::vector<Tensor>& operands, const RandomSlice& slice) {
    std::vector<Variable> variables;
    for (const Tensor& operand : operands) {
      variables.emplace_back(TensorSpec{operand.shape(), DType::f32, {}});
      variables.back().assign(operand);
      variables.back().set_requires_grad(true);
    }
    manual_seed(19);  // what is pending runs before
    Tensor y = scaled_dot_product_attention(variables[0].value(), variables[1].value(), variables[2].value(),
                                            {.dropout = 0.3, .slice = slice});
    sum(square(y)).backward();
    return std::vector{y, variables[0].grad(), variables[1].grad(), variables[2].grad()};
  };
  manual_seed(20);
  std::vector<Tensor> whole, own;
  for (int64_t time : {130, 150, 150}) whole.push_back(uniform_random({3, 6, time, 8}));
  for (const Tensor& one : whole) own.push_back(slice(slice(one, 1, 1, 6, 2), 0, 1, 3));
  commit();
  const RandomSlice heads{.whole = {3, 6, 130, 150}, .offset = {1, 1, 0, 0}, .stride = {1, 2, 1, 1}};
  const std::vector<Tensor> all = attend(whole, {}), found = attend(own, heads);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(found[i].to_vector<float>(), slice(slice(all[i], 1, 1, 6, 2), 0, 1, 3).to_vector<float>()) << i;
}

TEST(RandomSlices, MustLieInTheWhole) {
  const Tensor x = ones({2, 3});
  EXPECT_ERROR(dropout(x, 0.5, true, {.whole = {4, 4}, .offset = {0, 2}, .stride = {1, 1}}), ShapeError,
               "[dropout] a slice [2, 3] from [0, 2] on in steps of [1, 1] does not lie in the whole [4, 4]");
  EXPECT_ERROR(dropout(x, 0.5, true, {.whole = {4, 4}, .offset = {0, 0}, .stride = {4, 1}}), ShapeError, "steps of [4");
  EXPECT_ERROR(uniform_random({2}, DType::f32, {}, {.whole = {4}, .offset = {0}, .stride = {0}}), ShapeError,
               "[uniform_random] a slice");
  EXPECT_ERROR(normal_random({2}, DType::f32, {}, {.whole = {4, 4}, .offset = {0}, .stride = {1}}), ShapeError,
               "one number per dimension");
}

}  // namespace
}  // namespace bonfire::random_slices_test
