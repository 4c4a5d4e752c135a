#include "bonfire/backend/cuda/expression.h"

#include <gtest/gtest.h>

#include "bonfire/backend/cuda/nvrtc.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {
namespace {

constexpr int kArity[] = {
#define BONFIRE_ARITY(name, arity) arity,
    BONFIRE_ELEMENTWISE_FUNCTIONS(BONFIRE_ARITY)
#undef BONFIRE_ARITY
};

// Functions whose result is an integer for integers; the others give floats whatever they are asked.
constexpr ElementwiseFunction kWhole[] = {ElementwiseFunction::negative, ElementwiseFunction::square,
                                          ElementwiseFunction::pow,      ElementwiseFunction::maximum,
                                          ElementwiseFunction::where,    ElementwiseFunction::clamp};

// All of `functions` in one expression, of inputs 0, 1 and 2.
Expression expression_of(std::span<const ElementwiseFunction> functions, DType dtype) {
  Expression expression{.inputs = {dtype, dtype, dtype}, .instructions = {}, .outputs = {}, .output_types = {}};
  for (ElementwiseFunction function : functions) {
    Instruction instruction{function, {}, dtype};
    for (int operand = 0; operand < kArity[static_cast<int>(function)]; ++operand)
      instruction.operands.push_back(operand);
    expression.outputs.push_back(static_cast<int>(3 + expression.instructions.size()));
    expression.instructions.push_back(instruction);
    expression.output_types.push_back(dtype);
  }
  return expression;
}

bool compiles(const Expression& expression) {
  Shape shape{4, 6, 8};
  Walk walk = plan_walk(shape, {}, {shape, {8}, {}}, {{}, {}, {}}, expression);
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

Expression add_of(DType dtype) {
  return {.inputs = {dtype, dtype},
          .instructions = {{ElementwiseFunction::add, {0, 1}, dtype}},
          .outputs = {2},
          .output_types = {dtype}};
}

TEST(Walk, ContiguousOperandsBecomeOneAxis) {
  Shape shape{4, 6, 8, 10};
  Walk walk = plan_walk(shape, channels_last(), {shape, shape}, {channels_last(), channels_last()}, add_of(DType::bf16));
  EXPECT_EQ(walk.extents, (std::vector<int64_t>{1920}));
  EXPECT_EQ(walk.strides, (std::vector<std::vector<int64_t>>{{1}, {1}}));
  EXPECT_EQ(walk.width, 8);
}

TEST(Walk, ChannelBroadcastInChannelsLastKeepsTwoAxes) {
  Walk walk = plan_walk({2, 16, 3, 5}, channels_last(), {{2, 16, 3, 5}, {16, 1, 1}}, {channels_last(), {}}, add_of(DType::f32));
  EXPECT_EQ(walk.extents, (std::vector<int64_t>{30, 16}));
  EXPECT_EQ(walk.strides, (std::vector<std::vector<int64_t>>{{16, 1}, {0, 1}}));
  EXPECT_EQ(walk.width, 4);
}

TEST(Walk, OddExtentsAreReadOneByOne) {
  Walk walk = plan_walk({3, 7}, {}, {{3, 7}, {3, 1}}, {{}, {}}, add_of(DType::f32));
  EXPECT_EQ(walk.width, 1);
}

TEST(Walk, RankZeroIsOneElement) {
  Walk walk = plan_walk({}, {}, {{}, {}}, {{}, {}}, add_of(DType::f32));
  EXPECT_EQ(walk.extents, (std::vector<int64_t>{1}));
  EXPECT_EQ(walk.width, 1);
}

}  // namespace
}  // namespace bonfire::cuda
