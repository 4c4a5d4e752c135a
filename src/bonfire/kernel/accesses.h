#pragma once
// Which steps of a program must wait for each other: those that touch the same bytes, where one of them writes. Queues
// that run several steps at a time ask here.

#include <cstddef>
#include <span>
#include <vector>

#include "bonfire/kernel/queue.h"

namespace bonfire {

// The bytes that a step reads and those that it writes.
struct Accesses {
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };
  std::vector<Range> reads, writes;
};

Accesses::Range range_at(const void* address, size_t bytes);

// Of one step, with the addresses of a submission. Its workspace is written.
Accesses accesses_of(const Program& program, const ProgramStep& step, std::span<void* const> addresses);

bool must_wait(const Accesses& later, const Accesses& earlier);

}  // namespace bonfire
