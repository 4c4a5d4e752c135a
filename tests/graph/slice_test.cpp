#include "bonfire/graph/slice.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "bonfire/base/error.h"
#include "bonfire/graph/first_values.h"
#include "tests/graph/random_slice.h"
#include "tests/support/expect_error.h"

namespace bonfire::slice_test {
namespace {

using testing::random_shape;
using testing::random_slice;

TEST(Slice, KnowsTheShapeOfWhatIsStored) {
  EXPECT_EQ(Slice({4, 6}).local(), (Shape{4, 6}));
  EXPECT_EQ(Slice::box({4, 6}, {1, 2}, {2, 3}).local(), (Shape{2, 3}));
  EXPECT_EQ(Slice::part({12, 6}, 0, 1, 2, 3).local(), (Shape{6, 6}));  // two rows of each of three blocks
  EXPECT_EQ(Slice::range({4, 6}, 5, 9).local(), (Shape{4}));
  EXPECT_EQ(Slice({}).count(), 1);
}

TEST(Slice, PartsCoverAnAxisAndDifferByOneAtMost) {
  int64_t begin = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const Slice part = Slice::part({3, 10}, 1, i, 4);
    EXPECT_EQ(part.offset()[1], begin);
    EXPECT_EQ(part.extent()[1], i < 2 ? 3 : 2);
    begin += part.extent()[1];
  }
  EXPECT_EQ(begin, 10);
}

TEST(Slice, BlocksAreCutEachByItself) {
  const Slice slice = Slice::part({6, 2}, 0, 1, 2, 3);  // the second row of each block of two
  std::vector<int64_t> places;
  for (int64_t i = 0; i < slice.count(); ++i) places.push_back(slice.whole_index(i));
  EXPECT_EQ(places, (std::vector<int64_t>{2, 3, 6, 7, 10, 11}));
}

TEST(Slice, ARangeCountsInItsOrder) {
  const Slice slice = Slice::range({1, 2, 1, 3}, 1, 5, channels_last());  // of elements 0 3 1 4 2 5
  std::vector<int64_t> places;
  for (int64_t i = 0; i < slice.count(); ++i) places.push_back(slice.whole_index(i));
  EXPECT_EQ(places, (std::vector<int64_t>{3, 1, 4, 2}));
}

// Where each element of the whole is, by whole_index() alone.
std::map<int64_t, int64_t> places_of(const Slice& slice) {
  std::map<int64_t, int64_t> places;
  for (int64_t i = 0; i < slice.count(); ++i) EXPECT_TRUE(places.emplace(slice.whole_index(i), i).second);
  return places;
}

TEST(Slice, StretchesAndOverlapsAreThoseOfTheElements) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 500; ++trial) {
    const Shape whole = random_shape(random);
    const Slice a = random_slice(random, whole), b = random_slice(random, whole);
    SCOPED_TRACE(to_string(a) + "; " + to_string(b));
    const std::map<int64_t, int64_t> in_a = places_of(a), in_b = places_of(b);

    std::map<int64_t, int64_t> found;
    int64_t last = -1;
    for (const Stretch& stretch : stretches_of(a)) {
      EXPECT_GT(stretch.whole, last);
      last = stretch.whole + stretch.count - 1;
      for (int64_t i = 0; i < stretch.count; ++i) found[stretch.whole + i] = stretch.local + i;
    }
    EXPECT_EQ(found, in_a);

    std::map<int64_t, int64_t> common, expected;  // place in a → place in b
    for (const Overlap& one : overlaps(a, b))
      for (int64_t i = 0; i < one.count; ++i) EXPECT_TRUE(common.emplace(one.from + i, one.to + i).second);
    for (const auto& [place, local] : in_a)
      if (auto other = in_b.find(place); other != in_b.end()) expected[local] = other->second;
    EXPECT_EQ(common, expected);
    EXPECT_EQ(count_of(overlaps(a, b)), static_cast<int64_t>(expected.size()));

    EXPECT_EQ(Slice::from_words(a.words()), a);
    base::Hash128 first, second;
    a.mix_into(first);
    b.mix_into(second);
    EXPECT_EQ(first == second, a == b);
  }
}

TEST(Slice, FirstValuesOfASliceAreThatPartOfTheWhole) {
  const FirstValues values = first_values([](int64_t i) { return 0.37F * static_cast<float>(i) - 5; });
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 100; ++trial) {
    const Shape whole = trial == 0 ? Shape{700, 300} : random_shape(random);  // enough for several threads
    const Slice slice = random_slice(random, whole);
    SCOPED_TRACE(to_string(slice));
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i64}) {
      const size_t element = size_of(dtype);
      std::vector<std::byte> all(static_cast<size_t>(whole.count()) * element),
          part(static_cast<size_t>(slice.count()) * element), expected(part.size());
      fill_slice(values, Slice(whole), dtype, all.data());
      fill_slice(values, slice, dtype, part.data());
      for (int64_t i = 0; i < slice.count(); ++i)
        std::copy_n(all.data() + static_cast<size_t>(slice.whole_index(i)) * element, element,
                    expected.data() + static_cast<size_t>(i) * element);
      EXPECT_EQ(part, expected);
    }
  }
}

TEST(Slice, SaysWhatItIs) {
  EXPECT_EQ(to_string(Slice({2, 3})), "all of [2, 3]");
  EXPECT_EQ(to_string(Slice::box({4, 6}, {1, 0}, {2, 6})), "[1:3, 0:6] of [4, 6]");
  EXPECT_EQ(to_string(Slice::part({12, 2}, 0, 0, 2, 3)), "[0:2, 0:2] of [12, 2] in each of 3 blocks along axis 0");
  EXPECT_EQ(to_string(Slice::range({4, 6}, 2, 9)), "elements 2 to 9 of [4, 6]");
  EXPECT_EQ(to_string(Slice::range({2, 2, 2, 2}, 2, 9, channels_last())),
            "elements 2 to 9 of [2, 2, 2, 2] in the order channels_last");
}

TEST(Slice, WhatIsNotInsideIsRefused) {
  EXPECT_ERROR(Slice::box({4, 6}, {3, 0}, {2, 6}), ShapeError, "[2, 6] from [3, 0] is not inside [4, 6]");
  EXPECT_ERROR(Slice::box({4, 6}, {0}, {4}), ShapeError, "is not inside");
  EXPECT_ERROR(Slice::box({4, 6}, {0, 0}, {2, 6}, 0, 3), ShapeError, "with 3 blocks along axis 0");
  EXPECT_ERROR(Slice::part({4, 6}, 0, 2, 2), ShapeError, "part 2 of 2");
  EXPECT_ERROR(Slice::range({4, 6}, 3, 25), ShapeError, "there is no such range");
  EXPECT_ERROR(Slice::range({4, 6}, 3, 5, {.order = {1, 1}}), ShapeError, "there is no such range");
  EXPECT_ERROR(Slice::from_words(std::vector<int64_t>{0, 2, 4}), DataError, "damaged");
  EXPECT_ERROR(Slice::from_words(std::vector<int64_t>{0, 99}), DataError, "damaged");
}

}  // namespace
}  // namespace bonfire::slice_test
