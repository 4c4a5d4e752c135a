// num_iteration_per_drop_scope: how often what is no longer needed is released.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bonfire/bonfire.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::release_test {
namespace {

constexpr Device kDevice{DeviceType::cpu, 7};  // whose scratch memory no other test uses

// Restores the usual frequency when it goes.
struct Frequency {
  explicit Frequency(int64_t submissions) { runtime::set_release_frequency(submissions); }
  ~Frequency() { runtime::set_release_frequency(100); }
};

void run_small(int times) {
  Tensor x = ones({2}, DType::f32, kDevice);
  for (int i = 0; i < times; ++i) (x + 1.0).to_vector<float>();
}

uint64_t releases_during(const std::function<void()>& body) {
  const uint64_t before = runtime::cache_statistics().releases;
  body();
  return runtime::cache_statistics().releases - before;
}

TEST(PlanCacheRelease, ComesEverySoManySubmissions) {
  run_small(1);
  for (int every : {1, 3, 100}) {
    Frequency frequency(every);
    EXPECT_EQ(releases_during([&] { run_small(4 * every); }), 4U) << every;
  }
}

TEST(PlanCacheRelease, CountsSubmissionsOfCompiledStepsToo) {
  auto step = compile([](const Tensor& x) { return x * 2.0; });
  Tensor x = ones({2}, DType::f32, kDevice);
  step(x);
  Frequency frequency(5);
  EXPECT_EQ(releases_during([&] {
              for (int i = 0; i < 20; ++i) step(x);
            }),
            4U);
}

// Pages of the device's scratch memory that are there, after the first 2 MiB.
size_t resident_pages(size_t bytes) {
  constexpr size_t kKept = 2 << 20;
  auto* arena = static_cast<std::byte*>(queue_of(kDevice).arena(1));
  std::vector<unsigned char> pages((bytes - kKept) / static_cast<size_t>(::getpagesize()));
  EXPECT_EQ(::mincore(arena + kKept, bytes - kKept, pages.data()), 0);
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

TEST(PlanCacheRelease, GivesBackScratchMemoryThatOnlyDroppedPlansNeeded) {
  constexpr int64_t kSide = 1024;
  constexpr size_t kBytes = 4 * kSide * kSide;  // of a product
  Tensor x = full({kSide, kSide}, 1e-3, DType::f32, kDevice);
  auto large = [&] { return sum(matmul(matmul(x, x), x)).item(); };
  const double expected = large();
  EXPECT_GT(resident_pages(kBytes), 0U);
  Frequency frequency(10);
  run_small(100);
  queue_of(kDevice).synchronize();
  EXPECT_GT(resident_pages(kBytes), 0U);  // its plan has run of late
  const uint64_t dropped = runtime::cache_statistics().dropped;
  run_small(2010);
  queue_of(kDevice).synchronize();
  EXPECT_GT(runtime::cache_statistics().dropped, dropped);
  EXPECT_EQ(resident_pages(kBytes), 0U);
  EXPECT_EQ(large(), expected);  // compiled again, in new memory
}

TEST(PlanCacheRelease, NeedsAFrequency) {
  EXPECT_ERROR(runtime::set_release_frequency(0), ConfigError,
               "num_iteration_per_drop_scope is 0, expected at least 1");
}

}  // namespace
}  // namespace bonfire::release_test
