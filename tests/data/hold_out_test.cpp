#include "bonfire/data/hold_out.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "bonfire/data/labels.h"
#include "bonfire/data/stored_images.h"

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

}  // namespace
}  // namespace bonfire::data::hold_out_test
