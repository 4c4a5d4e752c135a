// The first numbers of what fuzz_idx, fuzz_cifar and fuzz_records go on with for a minute.

#include <gtest/gtest.h>

#include "tests/data/reader_mutators.h"

namespace bonfire::data::testing::reader_fuzz_test {
namespace {

void expect_some_taken_and_some_refused(bool (*takes)(uint64_t, uint64_t)) {
  constexpr uint64_t kFiles = 3000;
  uint64_t taken = 0;
  for (uint64_t number = 0; number < kFiles; ++number) taken += takes(1, number) ? 1U : 0U;
  EXPECT_GT(taken, kFiles / 50);
  EXPECT_LT(taken, kFiles - kFiles / 50);
}

TEST(ReaderFuzz, IdxFilesAreReadOrRefused) { expect_some_taken_and_some_refused(takes_idx); }
TEST(ReaderFuzz, CifarFilesAreReadOrRefused) { expect_some_taken_and_some_refused(takes_cifar); }
TEST(ReaderFuzz, RecordShardsAreReadOrRefused) { expect_some_taken_and_some_refused(takes_records); }

}  // namespace
}  // namespace bonfire::data::testing::reader_fuzz_test
