#include "bonfire/data/hold_out.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "bonfire/data/labels.h"
#include "bonfire/data/stored_images.h"
#include "tests/support/expect_error.h"

namespace bonfire::data::hold_out_test {
namespace {

// 100 images of class 0, 40 of class 1, 3 of class 2 and one of class 3, mixed.
std::shared_ptr<const Dataset> images() {
  std::vector<uint8_t> labels;
  for (int i = 0; i < 144; ++i) labels.push_back(i == 77 ? 3 : i % 50 == 20 ? 2 : i % 7 < 2 ? 1 : 0);
  std::vector<uint8_t> pixels(labels.size());
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i);
  return std::make_shared<StoredImages>(Shape{1, 1, 1}, pixels, labels);
}

TEST(HoldOut, TakesTheSameShareOfEachClassAndLosesNothing) {
  auto all = images();
  HeldOut parts = hold_out(all, {.share = 0.25, .seed = 1});
  const std::vector<int64_t> before = count_labels(*all, 4), held = count_labels(*parts.held, 4),
                             kept = count_labels(*parts.kept, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(held[i] + kept[i], before[i]);
  for (size_t i : {0, 1}) EXPECT_EQ(held[i], std::llround(0.25 * static_cast<double>(before[i])));
  EXPECT_EQ(held[2], 1);  // one at least,
  EXPECT_EQ(kept[3], 1);  // and never all
  std::vector<int64_t> numbers = parts.kept->samples();
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  numbers.insert(numbers.end(), parts.held->samples().begin(), parts.held->samples().end());
  std::sort(numbers.begin(), numbers.end());
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<int64_t>(i));
  const int64_t number = parts.held->samples()[5];
  EXPECT_EQ(parts.held->get(5).input.bytes, all->get(number).input.bytes);
  EXPECT_EQ(parts.held->label(5), all->label(number));
}

TEST(HoldOut, DependsOnTheSeedAndNothingElse) {
  EXPECT_EQ(hold_out(images(), {.share = 0.25, .seed = 1}).held->samples(),
            hold_out(images(), {.share = 0.25, .seed = 1}).held->samples());
  EXPECT_NE(hold_out(images(), {.share = 0.25, .seed = 1}).held->samples(),
            hold_out(images(), {.share = 0.25, .seed = 2}).held->samples());
  EXPECT_EQ(hold_out(images(), {.share = 0.25, .seed = 1, .by_class = false}).held->size(), 36);
}

TEST(HoldOut, ASampleThatIsNotThereIsAnError) {
  const auto all = images();
  const Subset two(all, {3, 5});
  EXPECT_ERROR(two.get(2), DataError, "there is no sample 2: the data set has 2, counted from 0");
  EXPECT_ERROR(two.label(-1), DataError, "there is no sample -1");
  EXPECT_ERROR(all->get(144), DataError, "there is no sample 144");
  EXPECT_ERROR(all->label(144), DataError, "there is no sample 144");
}

TEST(Labels, ThatAreNoClassAreNamed) {
  EXPECT_ERROR(count_labels(*images(), 3), DataError, "sample 77 has the label 3, expected 0 to 2 of 3 classes");
  EXPECT_ERROR(class_index("test", 4, -1, 3), DataError, "[test] sample 4 has the label -1, expected 0 to 2");
  EXPECT_EQ(class_index("test", 4, 2, 3), 2U);
}

// What a sample is to be answered with is a number, not a class.
class Measured final : public Dataset {
 public:
  int64_t size() const override { return 4; }
  Sample get(int64_t) const override {
    return {{DType::u8, {1, 1, 1}, std::vector<std::byte>(1)}, {DType::f32, {1}, std::vector<std::byte>(4)}, {}};
  }
};

TEST(Labels, OfAnotherKindAreNoClasses) {
  const auto measured = std::make_shared<Measured>();
  EXPECT_ERROR(measured->label(0), DataError, "the label of a sample is f32 [1] in 4 bytes, expected a class, i64 []");
  EXPECT_ERROR(hold_out(measured, {}), DataError, "expected a class, i64 []");
  EXPECT_EQ(hold_out(measured, {.share = 0.5, .by_class = false}).held->size(), 2);
}

}  // namespace
}  // namespace bonfire::data::hold_out_test
