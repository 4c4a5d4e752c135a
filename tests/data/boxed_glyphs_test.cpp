#include "bonfire/data/boxed_glyphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace bonfire::data::boxed_glyphs_test {
namespace {

constexpr int64_t kSide = BoxedGlyphs::kSide;

TEST(BoxedGlyphs, AreAFunctionOfTheSeedTheSplitAndTheNumber) {
  const BoxedGlyphs images({.size = 20}), again({.size = 20}), test({.split = Split::test, .size = 20}),
      other({.size = 20, .seed = 2});
  for (int64_t i = 0; i < 20; ++i) {
    const Sample sample = images.get(i);
    EXPECT_EQ(sample.input.shape, (Shape{kSide, kSide, 1}));
    EXPECT_EQ(sample.input.bytes, again.get(i).input.bytes);
    EXPECT_EQ(sample.label.bytes, again.get(i).label.bytes);
    EXPECT_NE(sample.input.bytes, test.get(i).input.bytes);
    EXPECT_NE(sample.input.bytes, other.get(i).input.bytes);
    EXPECT_EQ(box_label_of(sample).label, images.label(i));
  }
}

// What is brighter than the noise fills the box from side to side, and nothing of it lies outside.
TEST(BoxedGlyphs, TheBoxIsAroundTheGlyph) {
  constexpr int kNoise = 60;
  const BoxedGlyphs images({.size = 200});
  std::set<int64_t> labels, widths, lefts;
  for (int64_t i = 0; i < images.size(); ++i) {
    const Sample sample = images.get(i);
    const BoxLabel label = box_label_of(sample);
    labels.insert(label.label);
    int64_t left = kSide, top = kSide, right = 0, bottom = 0;
    for (int64_t y = 0; y < kSide; ++y)
      for (int64_t x = 0; x < kSide; ++x) {
        if (std::to_integer<int>(sample.input.bytes[static_cast<size_t>(y * kSide + x)]) <= kNoise) continue;
        left = std::min(left, x), right = std::max(right, x + 1);
        top = std::min(top, y), bottom = std::max(bottom, y + 1);
      }
    const int64_t found[] = {left, top, right, bottom};
    for (size_t side = 0; side < 4; ++side) {
      const float said = label.box[side] * static_cast<float>(kSide), place = static_cast<float>(found[side]);
      EXPECT_GE(said, 0);
      EXPECT_LE(said, kSide);
      if (side < 2)
        EXPECT_GE(place, said - 0.01F) << i;  // nothing before the box begins
      else
        EXPECT_LE(place, said + 0.01F) << i;
      EXPECT_NEAR(said, place, 2.5F) << i << " side " << side;
    }
    widths.insert(right - left);
    lefts.insert(left);
  }
  EXPECT_EQ(labels.size(), 10U);
  EXPECT_GT(widths.size(), 10U);
  EXPECT_GT(lefts.size(), 20U);
}

}  // namespace
}  // namespace bonfire::data::boxed_glyphs_test
