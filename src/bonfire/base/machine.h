#pragma once
// What this machine has, so that settings it cannot follow are refused at once, with the limit.

#include <cstdint>

namespace bonfire::base {

// Threads or processes that one setting may ask for: 16 for each core that this process may use, at least 64.
int64_t most_tasks();

// Bytes of memory that this process may use: the machine's, or less where its cgroup says so.
uint64_t memory_bytes();

}  // namespace bonfire::base
