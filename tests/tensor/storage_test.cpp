#include "bonfire/tensor/storage.h"

#include <gtest/gtest.h>

namespace bonfire::storage_test {
namespace {

TEST(Layout, RowMajorIsTheDefault) {
  EXPECT_TRUE(Layout().row_major());
  EXPECT_FALSE(channels_last().row_major());
  EXPECT_EQ(to_string(Layout()), "row_major");
}

TEST(Layout, PrintsWhatItIs) {
  EXPECT_EQ(to_string(channels_last()), "channels_last");
  EXPECT_EQ(to_string(Layout{.order = {1, 0}, .block = 0}), "order[1, 0]");
  EXPECT_EQ(to_string(Layout{.order = {}, .block = 16}), "row_major/16");
  EXPECT_EQ(to_string(Layout{.order = {0, 1, 2, 3}, .block = 16}), "order[0, 1, 2, 3]/16");
}

TEST(Strides, FollowTheOrderOfAxes) {
  Shape shape{2, 3, 4, 5};  // [N, C, H, W]
  EXPECT_EQ(strides_of(shape, {}), Shape({60, 20, 5, 1}));
  EXPECT_EQ(strides_of(shape, channels_last()), Shape({60, 1, 15, 3}));
}

TEST(Strides, ALayoutOfAnotherRankOrABlockedOneIsABug) {
  EXPECT_THROW(strides_of({2, 3}, channels_last()), std::logic_error);
  EXPECT_THROW(strides_of({2, 3}, Layout{.order = {}, .block = 16}), std::logic_error);
}

TEST(Bytes, CountTheElementsAndThePaddingOfBlocks) {
  EXPECT_EQ(bytes_of({2, 3, 4}, DType::f32), 96U);
  EXPECT_EQ(bytes_of({2, 3, 4}, DType::bf16), 48U);
  EXPECT_EQ(bytes_of({2, 0, 4}, DType::f32), 0U);
  EXPECT_EQ(bytes_of({}, DType::f64), 8U);
  EXPECT_EQ(bytes_of({1, 17, 2, 2}, DType::f32, {.order = {0, 1, 2, 3}, .block = 16}), 32U * 2 * 2 * 4);
}

TEST(TensorSpec, PrintsTypeShapeAndDevice) {
  EXPECT_EQ(to_string(TensorSpec{{64, 10}, DType::bf16, {DeviceType::cuda, 1}}), "bf16 [64, 10] cuda:1");
  EXPECT_EQ((TensorSpec{{64, 10}, DType::bf16, {}}).bytes(), 1280U);
}

TEST(Layout, ExtentsOfOneMakeLayoutsEqual) {
  EXPECT_TRUE(same_places({8, 512, 1, 1}, {}, channels_last()));
  EXPECT_TRUE(same_places({8, 1, 28, 28}, {}, channels_last()));
  EXPECT_FALSE(same_places({8, 2, 28, 28}, {}, channels_last()));
}

TEST(Layout, BlocksAreFilledWithZerosAndComeBack) {
  Shape shape{2, 5, 1, 3};  // blocks of 4 channels: the second holds one
  std::vector<float> values(30), back(30, -1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  Layout blocked{.order = {}, .block = 4};
  std::vector<float> arranged(bytes_of(shape, DType::f32, blocked) / sizeof(float), -1);
  ASSERT_EQ(arranged.size(), 48U);
  convert_layout(values.data(), {}, arranged.data(), blocked, shape, DType::f32);
  EXPECT_EQ(arranged[1], values[3]);    // channel 1 beside channel 0
  EXPECT_EQ(arranged[4], values[1]);    // then the next column
  EXPECT_EQ(arranged[12], values[12]);  // channel 4 begins the second block
  EXPECT_EQ(arranged[13], 0);
  convert_layout(arranged.data(), blocked, back.data(), {}, shape, DType::f32);
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace bonfire::storage_test
