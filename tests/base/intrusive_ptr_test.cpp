#include "bonfire/base/intrusive_ptr.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace bonfire::base::intrusive_ptr_test {
namespace {

struct Counted : RefCounted<Counted> {
  explicit Counted(int& deaths) : deaths(deaths) {}
  ~Counted() { ++deaths; }
  int& deaths;
};

TEST(IntrusivePtr, TheLastHandleFreesTheObject) {
  int deaths = 0;
  {
    IntrusivePtr<Counted> first = make_intrusive<Counted>(deaths);
    IntrusivePtr<Counted> second = first;
    first = nullptr;
    EXPECT_FALSE(first);
    EXPECT_EQ(deaths, 0);
    EXPECT_TRUE(second);
  }
  EXPECT_EQ(deaths, 1);
}

TEST(IntrusivePtr, MovingKeepsTheCount) {
  int deaths = 0;
  IntrusivePtr<Counted> first = make_intrusive<Counted>(deaths);
  Counted* object = first.get();
  IntrusivePtr<Counted> second = std::move(first);
  EXPECT_EQ(second.get(), object);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): the claim under test
  second = nullptr;
  EXPECT_EQ(deaths, 1);
}

TEST(IntrusivePtr, AssignmentToItselfKeepsTheObject) {
  int deaths = 0;
  IntrusivePtr<Counted> handle = make_intrusive<Counted>(deaths);
  IntrusivePtr<Counted>& alias = handle;
  handle = alias;
  EXPECT_EQ(deaths, 0);
  EXPECT_TRUE(handle);
}

TEST(IntrusivePtr, AssignmentFreesWhatWasHeld) {
  int old_deaths = 0, new_deaths = 0;
  IntrusivePtr<Counted> handle = make_intrusive<Counted>(old_deaths);
  handle = make_intrusive<Counted>(new_deaths);
  EXPECT_EQ(old_deaths, 1);
  EXPECT_EQ(new_deaths, 0);
}

struct Recycled : RefCounted<Recycled> {
  static inline int recycled = 0;
  static void destroy(Recycled* object) noexcept {
    ++recycled;
    delete object;
  }
};

TEST(IntrusivePtr, ATypeMayBeFreedInItsOwnWay) {
  make_intrusive<Recycled>();
  EXPECT_EQ(Recycled::recycled, 1);
}

TEST(IntrusivePtrThread, ManyThreadsShareOneObject) {
  int deaths = 0;
  {
    IntrusivePtr<Counted> shared = make_intrusive<Counted>(deaths);
    auto copy_often = [handle = shared] {
      for (int i = 0; i < 1000; ++i) std::vector<IntrusivePtr<Counted>> copies(3, handle);
    };
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; ++i) threads.emplace_back(copy_often);
  }
  EXPECT_EQ(deaths, 1);
}

}  // namespace
}  // namespace bonfire::base::intrusive_ptr_test
