// Weights that pack several matrices know it, so that a part of them has its share of each.

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/nn/attention.h"
#include "bonfire/nn/lstm.h"
#include "bonfire/nn/other_values.h"
#include "tests/support/expect_error.h"

namespace bonfire::nn::packed_weights_test {
namespace {

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

// Rows begin to end of a matrix of so many columns.
std::vector<float> rows(const std::vector<float>& values, int64_t columns, int64_t begin, int64_t end) {
  return {values.begin() + begin * columns, values.begin() + end * columns};
}

// Of each of the blocks its part, one after the other, of the parameter and its gradient.
void expect_parts_of_blocks(const std::function<Module()>& make, const std::string& name, int64_t blocks) {
  constexpr int64_t kParts = 2;
  for (int64_t index = 0; index < kParts; ++index) {
    SCOPED_TRACE(name + " " + std::to_string(index));
    manual_seed(3);
    const Module module = make();
    for (const auto& [found, parameter] : module.named_parameters()) {
      if (found != name) continue;
      EXPECT_EQ(parameter.packing().axis, 0);
      EXPECT_EQ(parameter.packing().blocks, blocks);
      const std::vector<float> whole = floats(parameter.save());
      const int64_t size = parameter.shape()[0], columns = parameter.shape().count() / size;
      const int64_t block = size / blocks, share = block / kParts;
      std::vector<float> expected;
      for (int64_t b = 0; b < blocks; ++b)
        for (float value : rows(whole, columns, b * block + index * share, b * block + (index + 1) * share))
          expected.push_back(value);
      const Slice part = parameter.part(0, index, kParts);
      parameter.keep_slice(part);
      EXPECT_EQ(floats(parameter.save_stored()), expected);
      EXPECT_EQ(parameter.grad_variable().slice(), part);
      return;
    }
    FAIL() << "there is no such parameter";
  }
}

TEST(PackedWeights, PartsOfAnAttentionsProjectionHaveQueryKeyAndValue) {
  for (const char* name : {"in_proj_weight", "in_proj_bias"})
    expect_parts_of_blocks([] { return MultiheadAttention({.size = 8, .heads = 2}); }, name, 3);
}

TEST(PackedWeights, PartsOfAnLstmHaveAllFourGates) {
  for (const char* name : {"weight_ih_l0", "weight_hh_l1", "bias_ih_l0", "bias_hh_l1"})
    expect_parts_of_blocks([] { return LSTM({.input = 3, .hidden = 6, .layers = 2}); }, name, 4);
}

TEST(PackedWeights, OtherAxesAndOtherWeightsAreCutInOnePiece) {
  const MultiheadAttention attention({.size = 8, .heads = 2});
  for (const auto& [name, parameter] : attention.named_parameters()) {
    if (name == "in_proj_weight") {
      EXPECT_EQ(parameter.part(-1, 1, 2), Slice::part({24, 8}, 1, 1, 2));
      EXPECT_EQ(parameter.part(-2, 1, 2), Slice::part({24, 8}, 0, 1, 2, 3));
    }
    if (name == "out_proj.weight") {
      EXPECT_EQ(parameter.packing().blocks, 1);
      EXPECT_EQ(parameter.part(0, 1, 2), Slice::part({8, 8}, 0, 1, 2));
    }
  }
}

TEST(PackedWeights, CopiesOfAModelArePackedToo) {
  const MultiheadAttention attention({.size = 8, .heads = 2});
  const OtherValues average(attention);
  int packed = 0;
  for (const auto& [name, variable] : average.state()) packed += variable.packing().blocks == 3 ? 1 : 0;
  EXPECT_EQ(packed, 2);
}

TEST(PackedWeights, BlocksThatDoNotDivideTheAxisAreAnError) {
  const Variable variable({{8, 6}, DType::f32, {}}, "w");
  EXPECT_ERROR(variable.set_packed(0, 3), ShapeError, "variable w is f32 [8, 6] cpu:0: its axis 0 is not 3 blocks");
  EXPECT_ERROR(variable.set_packed(2, 1), ShapeError, "axis 2");
  EXPECT_ERROR(variable.part(2, 0, 2), ShapeError, "has no axis 2");
  variable.set_packed(-1, 3);
  EXPECT_EQ(variable.part(1, 0, 2), Slice::part({8, 6}, 1, 0, 2, 3));
}

}  // namespace
}  // namespace bonfire::nn::packed_weights_test
