#include "bonfire/backend/cuda/expression.h"

#include <gtest/gtest.h>

#include <span>

#include "bonfire/backend/cuda/nvrtc.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda::expression_test {
namespace {

// Functions whose result is an integer for integers; the others give floats whatever they are asked.
constexpr ElementwiseFunction kWhole[] = {ElementwiseFunction::negative, ElementwiseFunction::square,
                                          ElementwiseFunction::pow,      ElementwiseFunction::maximum,
                                          ElementwiseFunction::where,    ElementwiseFunction::clamp};

// All of `functions` in one expression, of inputs 0, 1 and 2.
Expression expression_of(std::span<const ElementwiseFunction> functions, DType dtype) {
  Expression expression{.program = {.inputs = 3, .instructions = {}, .results = {}, .shape = {4, 6, 8}, .types = {}},
                        .inputs = {dtype, dtype, dtype},
                        .compute = dtype == DType::f64  ? dtype
                                   : is_floating(dtype) ? DType::f32
                                                        : DType::i64};
  for (ElementwiseFunction function : functions) {
    ElementwiseInstruction instruction{function};
    for (int operand = 0; operand < arity(function); ++operand) instruction.operand[operand] = operand;
    expression.program.results.push_back(static_cast<int>(expression.program.instructions.size()));
    expression.program.instructions.push_back(instruction);
    expression.program.types.push_back(dtype);
  }
  return expression;
}

bool compiles(const Expression& expression) {
  Walk walk = plan_walk(expression, {}, {expression.program.shape, {8}, {}}, {{}, {}, {}});
  return !compile_to_cubin(generate_source(expression, walk), 90).empty();
}

TEST(Expression, EveryFunctionCompiles) {
  std::vector<ElementwiseFunction> all;
  for (int i = 0; i < static_cast<int>(ElementwiseFunction::count); ++i)
    all.push_back(static_cast<ElementwiseFunction>(i));
  EXPECT_TRUE(compiles(expression_of(all, DType::f32)));
}

TEST(Expression, EveryTypeCompiles) {
  constexpr ElementwiseFunction kAny[] = {ElementwiseFunction::add, ElementwiseFunction::relu};
  for (DType dtype : {DType::f64, DType::bf16, DType::f16, DType::i32, DType::u8, DType::boolean})
    EXPECT_TRUE(compiles(expression_of(kAny, dtype))) << name_of(dtype);
  EXPECT_TRUE(compiles(expression_of(kWhole, DType::i64)));
}

Expression add_of(const Shape& shape, DType dtype) {
  return {.program = {.inputs = 2,
                      .instructions = {{ElementwiseFunction::add, {0, 1, -1}}},
                      .results = {0},
                      .shape = shape,
                      .types = {dtype}},
          .inputs = {dtype, dtype},
          .compute = DType::f32};
}

TEST(Walk, ContiguousOperandsBecomeOneAxis) {
  Shape shape{4, 6, 8, 10};
  Walk walk =
      plan_walk(add_of(shape, DType::bf16), channels_last(), {shape, shape}, {channels_last(), channels_last()});
  EXPECT_EQ(walk.extents, (std::vector<int64_t>{1920}));
  EXPECT_EQ(walk.strides, (std::vector<std::vector<int64_t>>{{1}, {1}}));
  EXPECT_EQ(walk.width, 8);
}

TEST(Walk, ChannelBroadcastInChannelsLastKeepsTwoAxes) {
  Shape shape{2, 16, 3, 5};
  Walk walk = plan_walk(add_of(shape, DType::f32), channels_last(), {shape, {16, 1, 1}}, {channels_last(), {}});
  EXPECT_EQ(walk.extents, (std::vector<int64_t>{30, 16}));
  EXPECT_EQ(walk.strides, (std::vector<std::vector<int64_t>>{{16, 1}, {0, 1}}));
  EXPECT_EQ(walk.width, 4);
}

TEST(Walk, OddExtentsAreReadOneByOne) {
  Walk walk = plan_walk(add_of({3, 7}, DType::f32), {}, {{3, 7}, {3, 1}}, {{}, {}});
  EXPECT_EQ(walk.width, 1);
}

TEST(Walk, RankZeroIsOneElement) {
  Walk walk = plan_walk(add_of({}, DType::f32), {}, {{}, {}}, {{}, {}});
  EXPECT_EQ(walk.extents, (std::vector<int64_t>{1}));
  EXPECT_EQ(walk.width, 1);
}

}  // namespace
}  // namespace bonfire::cuda::expression_test
