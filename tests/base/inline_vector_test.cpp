#include "bonfire/base/inline_vector.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bonfire::base::inline_vector_test {
namespace {

// Long enough that every copy owns memory: leaks and double frees show under ASan.
std::string text(int i) { return "a text that does not fit into a small string, number " + std::to_string(i); }

using Texts = InlineVector<std::string, 2>;

Texts texts(int count) {
  Texts result;
  for (int i = 0; i < count; ++i) result.push_back(text(i));
  return result;
}

bool lives_inside(const Texts& vector) {
  auto* object = reinterpret_cast<const char*>(&vector);
  auto* data = reinterpret_cast<const char*>(vector.data());
  return data >= object && data < object + sizeof vector;
}

TEST(InlineVector, AllocatesOnlyBeyondItsInlineCapacity) {
  EXPECT_TRUE(lives_inside(texts(0)));
  EXPECT_TRUE(lives_inside(texts(2)));
  EXPECT_FALSE(lives_inside(texts(3)));
}

TEST(InlineVector, KeepsItsElementsWhileItGrows) {
  Texts vector = texts(100);
  ASSERT_EQ(vector.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(vector[static_cast<size_t>(i)], text(i));
  EXPECT_EQ(vector.back(), text(99));
}

TEST(InlineVector, CopiesAreEqualAndIndependent) {
  for (int count : {0, 1, 2, 3, 9}) {
    Texts original = texts(count), copy = original;
    EXPECT_EQ(copy, original);
    copy.push_back("more");
    EXPECT_NE(copy, original);
    original = copy;
    EXPECT_EQ(copy, original);
  }
}

TEST(InlineVector, MovingEmptiesTheSource) {
  for (int count : {0, 1, 2, 3, 9}) {
    Texts source = texts(count), moved = std::move(source);
    EXPECT_EQ(moved, texts(count));
    EXPECT_TRUE(source.empty());  // NOLINT(bugprone-use-after-move): the claim under test
    source.push_back("again");
    EXPECT_EQ(source.size(), 1U);
  }
}

TEST(InlineVector, AssignmentReplacesAnySizeByAnySize) {
  for (int from : {0, 2, 5})
    for (int to : {0, 1, 2, 3, 9}) {
      Texts target = texts(from);
      target = texts(to);
      EXPECT_EQ(target, texts(to));
    }
  Texts self = texts(3);
  Texts& alias = self;
  self = alias;
  self = std::move(alias);
  EXPECT_EQ(self, texts(3));
}

TEST(InlineVector, MayAppendItsOwnElementsWhileGrowing) {
  Texts vector = texts(2);
  vector.emplace_back(vector[0]);
  vector.push_back(vector[1]);
  EXPECT_EQ(vector[2], text(0));
  EXPECT_EQ(vector[3], text(1));
}

TEST(InlineVector, ResizeDropsOrAddsAtTheEnd) {
  Texts vector = texts(5);
  vector.resize(1);
  EXPECT_EQ(vector, texts(1));
  vector.resize(3);
  EXPECT_EQ(vector[2], "");
  vector.clear();
  EXPECT_TRUE(vector.empty());
}

TEST(InlineVector, HoldsTypesThatCanOnlyMove) {
  InlineVector<std::unique_ptr<int>, 1> vector;
  for (int i = 0; i < 5; ++i) vector.push_back(std::make_unique<int>(i));
  InlineVector<std::unique_ptr<int>, 1> moved = std::move(vector);
  EXPECT_EQ(*moved.back(), 4);
}

struct CountedCopy {
  static inline int alive = 0;
  explicit CountedCopy(bool fragile) : fragile(fragile) { ++alive; }
  CountedCopy(const CountedCopy& other) : fragile(other.fragile) {
    if (fragile) throw std::runtime_error("this one cannot be copied");
    ++alive;
  }
  CountedCopy(CountedCopy&& other) noexcept : fragile(other.fragile) { ++alive; }
  ~CountedCopy() { --alive; }
  bool fragile;
};

TEST(InlineVector, ACopyThatThrowsHalfwayLeavesNothingBehind) {
  {
    InlineVector<CountedCopy, 1> original;
    for (bool fragile : {false, false, true}) original.emplace_back(fragile);
    using Vector = InlineVector<CountedCopy, 1>;
    EXPECT_THROW(Vector{original}, std::runtime_error);
    EXPECT_EQ(CountedCopy::alive, 3);
  }
  EXPECT_EQ(CountedCopy::alive, 0);
}

TEST(InlineVector, AppendsWithinItsOwnMemoryAndBeyond) {
  InlineVector<int, 4> vector{1};
  for (const std::vector<int>& more : {std::vector<int>{2, 3}, {}, {4}, {5}, {6, 7, 8, 9, 10, 11, 12, 13, 14}})
    vector.append(more);
  ASSERT_EQ(vector.size(), 14U);
  for (int i = 0; i < 14; ++i) EXPECT_EQ(vector[static_cast<size_t>(i)], i + 1);
  InlineVector<int, 4> taken = std::move(vector);
  vector.append(std::vector<int>{7});  // NOLINT(bugprone-use-after-move): a moved one is empty
  EXPECT_EQ(taken.size(), 14U);
  EXPECT_EQ(vector.size(), 1U);
  EXPECT_EQ(vector[0], 7);
}

TEST(InlineVector, IsASpanOfItsElements) {
  InlineVector<int, 4> vector{3, 1, 2};
  std::span<const int> span = vector;
  EXPECT_EQ(span.size(), 3U);
  EXPECT_EQ(span[1], 1);
}

}  // namespace
}  // namespace bonfire::base::inline_vector_test
