#include "bonfire/tensor/shape.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bonfire/base/error.h"

namespace bonfire::shape_test {
namespace {

std::string shape_error(const auto& call) {
  try {
    call();
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape({2, 3, 4}).count(), 24);
  EXPECT_EQ(Shape({2, 0, 4}).count(), 0);
  EXPECT_EQ(Shape().count(), 1);
}

TEST(Shape, NegativeAxesCountFromTheEnd) {
  Shape shape{2, 3, 4};
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[-3], shape[0]);
}

TEST(Shape, ComparesByRankAndExtents) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
}

TEST(Shape, HoldsNoMoreThanEightDimensions) {
  std::vector<int64_t> eight(8, 1), nine(9, 1);
  EXPECT_EQ(Shape(std::span<const int64_t>(eight)).rank(), 8);
  EXPECT_EQ(shape_error([&] { Shape{std::span<const int64_t>(nine)}; }), "[shape] more than 8 dimensions");
}

TEST(Shape, PrintsAsAList) {
  EXPECT_EQ(to_string(Shape({64, 1, 3, 3})), "[64, 1, 3, 3]");
  EXPECT_EQ(to_string(Shape()), "[]");
}

TEST(Shape, RowMajorStridesEndWithOne) {
  EXPECT_EQ(row_major_strides({2, 3, 4}), Shape({12, 4, 1}));
  EXPECT_EQ(row_major_strides({}), Shape());
}

TEST(Broadcast, StretchesOnesAndAddsLeadingAxes) {
  EXPECT_EQ(broadcast_shapes("add", {2, 3}, {2, 3}), Shape({2, 3}));
  EXPECT_EQ(broadcast_shapes("add", {2, 1}, {1, 3}), Shape({2, 3}));
  EXPECT_EQ(broadcast_shapes("add", {3}, {4, 2, 1}), Shape({4, 2, 3}));
  EXPECT_EQ(broadcast_shapes("add", {}, {5}), Shape({5}));
  EXPECT_EQ(broadcast_shapes("add", {1}, {0}), Shape({0}));
}

TEST(Broadcast, AMismatchNamesOpShapesAndDimension) {
  EXPECT_EQ(shape_error([] {
              broadcast_shapes("mul", {2, 3}, {4});
            }),
            "[mul] shapes [2, 3] and [4] do not broadcast: dimension 1 is 3 in one and 4 in the other");
  EXPECT_EQ(shape_error([] { broadcast_shapes("add", {0}, {3}); }),
            "[add] shapes [0] and [3] do not broadcast: dimension 0 is 0 in one and 3 in the other");
}

TEST(NormalizeAxis, AcceptsBothWaysOfCounting) {
  EXPECT_EQ(normalize_axis("sum", 1, 3), 1);
  EXPECT_EQ(normalize_axis("sum", -1, 3), 2);
}

TEST(NormalizeAxis, OutOfRangeNamesTheOp) {
  EXPECT_EQ(shape_error([] { normalize_axis("sum", 3, 3); }),
            "[sum] axis 3 is out of range for a tensor of 3 dimensions");
  EXPECT_EQ(shape_error([] { normalize_axis("sum", -2, 1); }),
            "[sum] axis -2 is out of range for a tensor of 1 dimension");
}

}  // namespace
}  // namespace bonfire::shape_test
