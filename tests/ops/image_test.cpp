#include "bonfire/ops/image.h"

#include <gtest/gtest.h>

#include "bonfire/graph/node.h"

namespace bonfire::image_test {
namespace {

const std::vector<float> kMean{0.485F, 0.456F, 0.406F}, kDeviation{0.229F, 0.224F, 0.225F};

std::vector<uint8_t> pixels() {  // 2 images of 3 x 5 x 7
  std::vector<uint8_t> values;
  for (int i = 0; i < 2 * 3 * 5 * 7; ++i) values.push_back(static_cast<uint8_t>(i * 37 % 256));
  return values;
}

Tensor normalized(const Shape& shape, NormalizeImageOptions options) {
  std::vector<uint8_t> values = pixels();
  return normalize_image(Tensor::from<uint8_t>(values, shape), Tensor::from<float>(kMean, {3}),
                         Tensor::from<float>(kDeviation, {3}), options);
}

float expected(uint8_t pixel, size_t channel) {
  return (static_cast<float>(pixel) / 255.0F - kMean[channel]) / kDeviation[channel];
}

TEST(NormalizeImage, ScalesEachChannelByItsOwnMeanAndDeviation) {
  std::vector<float> y = normalized({2, 3, 5, 7}, {}).to_vector<float>();
  std::vector<uint8_t> x = pixels();
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected(x[i], i / 35 % 3), 1e-5F) << i;
}

TEST(NormalizeImage, BringsChannelsForwardFromInterleavedPixels) {
  std::vector<float> y = normalized({2, 5, 7, 3}, {.channels_last = true}).to_vector<float>();
  std::vector<uint8_t> x = pixels();
  for (size_t n = 0; n < 2; ++n)
    for (size_t c = 0; c < 3; ++c)
      for (size_t p = 0; p < 35; ++p) EXPECT_NEAR(y[(n * 3 + c) * 35 + p], expected(x[(n * 35 + p) * 3 + c], c), 1e-5F);
}

TEST(NormalizeImage, RoundsToBf16WhenAsked) {
  std::vector<float> y = normalized({2, 3, 5, 7}, {.dtype = DType::bf16}).to_vector<float>();
  std::vector<uint8_t> x = pixels();
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected(x[i], i / 35 % 3), 0.02F) << i;
}

}  // namespace
}  // namespace bonfire::image_test
