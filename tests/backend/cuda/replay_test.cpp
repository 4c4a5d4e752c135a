#include "bonfire/backend/cuda/replay.h"

#include <gtest/gtest.h>

namespace bonfire::cuda::replay_test {
namespace {

using Waits = std::vector<std::vector<int>>;

// Ranges of an imaginary arena.
Accesses::Range bytes(size_t begin, size_t end) {
  auto* base = reinterpret_cast<const std::byte*>(0x1000);
  return {base + begin, base + end};
}

TEST(Dependencies, ReadersOfOneValueRunTogether) {
  EXPECT_EQ(dependencies({{.reads = {}, .writes = {bytes(0, 64)}},
                          {.reads = {bytes(0, 64)}, .writes = {bytes(64, 128)}},
                          {.reads = {bytes(0, 64)}, .writes = {bytes(128, 192)}}}),
            (Waits{{}, {0}, {0}}));
}

TEST(Dependencies, ReuseOfMemoryWaitsForItsReaders) {
  EXPECT_EQ(dependencies({{.reads = {}, .writes = {bytes(0, 64)}},
                          {.reads = {bytes(0, 64)}, .writes = {bytes(64, 128)}},
                          {.reads = {}, .writes = {bytes(32, 48)}}}),
            (Waits{{}, {0}, {1}}));
}

TEST(Dependencies, WhatAnotherWaitImpliesIsLeftOut) {
  EXPECT_EQ(dependencies({{.reads = {}, .writes = {bytes(0, 64)}},
                          {.reads = {bytes(0, 64)}, .writes = {bytes(64, 128)}},
                          {.reads = {bytes(0, 64), bytes(64, 128)}, .writes = {bytes(128, 192)}}}),
            (Waits{{}, {0}, {1}}));
}

TEST(Dependencies, EmptyValuesOrderNothing) {
  EXPECT_EQ(dependencies({{.reads = {}, .writes = {bytes(0, 0)}}, {.reads = {bytes(0, 0)}, .writes = {bytes(0, 64)}}}),
            (Waits{{}, {}}));
}

}  // namespace
}  // namespace bonfire::cuda::replay_test
