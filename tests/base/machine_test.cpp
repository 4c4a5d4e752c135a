#include "bonfire/base/machine.h"

#include <gtest/gtest.h>

#include "bonfire/base/thread_pool.h"

namespace bonfire::base::machine_test {
namespace {

TEST(Machine, HasALimitThatGrowsWithItsCores) {
  EXPECT_GE(most_tasks(), 64);
  EXPECT_GE(most_tasks(), 16 * available_cores());
  EXPECT_GT(memory_bytes(), uint64_t{64} << 20);
}

}  // namespace
}  // namespace bonfire::base::machine_test
