#include "bonfire/data/glyphs.h"

#include <gtest/gtest.h>

#include <set>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"

namespace bonfire::data::glyphs_test {
namespace {

std::string pixels(const Glyphs& glyphs, int64_t index) {
  std::vector<std::byte> bytes = glyphs.get(index).input.bytes;
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Glyphs, AreAPureFunctionOfSeedAndIndex) {
  Glyphs some({.size = 100, .seed = 4}), again({.size = 1000, .seed = 4}), other({.size = 100, .seed = 5});
  int different = 0;
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(pixels(some, i), pixels(again, i));
    different += pixels(some, i) != pixels(other, i) ? 1 : 0;
  }
  EXPECT_EQ(different, 100);
}

TEST(Glyphs, SplitsHaveNoImageInCommonAndNoneTwice) {
  Glyphs train({.split = Split::train, .size = 500}), test({.split = Split::test, .size = 500});
  std::set<std::string> seen;
  for (int64_t i = 0; i < 500; ++i) {
    seen.insert(pixels(train, i));
    seen.insert(pixels(test, i));
  }
  EXPECT_EQ(seen.size(), 1000U);
}

TEST(Glyphs, EveryClassIsAboutAsFrequentAndHasInk) {
  Glyphs glyphs({.size = 2000});
  std::vector<int> count(10);
  for (int64_t i = 0; i < glyphs.size(); ++i) {
    Sample sample = glyphs.get(i);
    ++count.at(static_cast<size_t>(label_of(sample)));
    EXPECT_EQ(sample.input.shape, (Shape{28, 28, 1}));
    int dark = 0;
    for (std::byte pixel : sample.input.bytes) dark += static_cast<int>(pixel) > 100 ? 1 : 0;
    EXPECT_GT(dark, 8) << "image " << i;
    EXPECT_LT(dark, 500) << "image " << i;
  }
  for (int number : count) EXPECT_NEAR(number, 200, 60);
  EXPECT_EQ(glyphs.class_names().size(), 10U);
}

TEST(Glyphs, ASampleThatIsNotThereIsAnError) {
  const Glyphs glyphs({.size = 12});
  EXPECT_ERROR(glyphs.get(-1), DataError, "there is no sample -1: the data set has 12, counted from 0");
  EXPECT_ERROR(glyphs.get(12), DataError, "there is no sample 12");
  EXPECT_ERROR(glyphs.label(12), DataError, "there is no sample 12");
}

TEST(Glyphs, ANegativeSizeIsAnError) { EXPECT_THROW(Glyphs({.size = -1}), ConfigError); }

}  // namespace
}  // namespace bonfire::data::glyphs_test
