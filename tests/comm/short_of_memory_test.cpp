// A rank that runs out of memory inside a call leaves nobody waiting for it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "bonfire/base/error.h"
#include "tests/comm/ranks.h"

namespace {
thread_local size_t most_at_once = SIZE_MAX;  // bytes that this thread can have by one `new`
}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCanRefuseMemory = false;  // sanitizers have allocation functions of their own
#else
constexpr bool kCanRefuseMemory = true;
// Not inlined: the compiler would see memory of one kind freed as another.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = bytes > most_at_once ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace bonfire::testing::short_of_memory_test {
namespace {

class ShortOfMemory : public ::testing::TestWithParam<Backend> {
  void SetUp() override {
    if (!kCanRefuseMemory) GTEST_SKIP() << "a sanitizer hands out the memory";
    if (!is_here(GetParam())) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
};

TEST_P(ShortOfMemory, InACallOfOneRankEndsThoseOfThePeersAtOnce) {
  auto endings = run_ranks(GetParam(), 3, [](Rank& rank) {
    std::vector<float> all(3 << 18), mine(1 << 18);
    try {
      if (rank.rank() == 1) most_at_once = 1 << 20;
      rank.group->reduce_scatter({all.data(), all.size(), DType::f32}, {mine.data(), mine.size(), DType::f32},
                                 comm::Reduce::sum);
    } catch (const std::exception&) {
      most_at_once = SIZE_MAX;
      ++rank.counters[0];
      rank.wait_for(0, rank.size());  // nobody learns of it because a process has ended
      throw;
    }
  });
  EXPECT_EQ(endings[1], "threw: std::bad_alloc");
  for (size_t r : {0, 2}) {
    EXPECT_NE(endings[r].find("[reduce_scatter] rank 1 ("), std::string::npos) << endings[r];
    EXPECT_NE(endings[r].find("gave up: [reduce_scatter] out of memory"), std::string::npos) << endings[r];
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ShortOfMemory, ::testing::Values(Backend::gloo, Backend::mpi),
                         [](const ::testing::TestParamInfo<Backend>& info) { return name_of(info.param); });

}  // namespace
}  // namespace bonfire::testing::short_of_memory_test
