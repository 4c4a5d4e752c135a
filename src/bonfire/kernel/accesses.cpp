#include "bonfire/kernel/accesses.h"

namespace bonfire {

namespace {

bool overlap(const std::vector<Accesses::Range>& a, const std::vector<Accesses::Range>& b) {
  for (const Accesses::Range& x : a)
    for (const Accesses::Range& y : b)
      if (x.begin < y.end && y.begin < x.end) return true;
  return false;
}

}  // namespace

Accesses::Range range_at(const void* address, size_t bytes) {
  auto* begin = static_cast<const std::byte*>(address);
  return {begin, begin + bytes};
}

Accesses accesses_of(const Program& program, const ProgramStep& step, std::span<void* const> addresses) {
  Accesses accesses;
  auto touch = [&](std::vector<Accesses::Range>& ranges, int position) {
    auto p = static_cast<size_t>(position);
    ranges.push_back(range_at(addresses[p], program.addresses[p].bytes));
  };
  for (int position : step.inputs) touch(accesses.reads, position);
  for (int position : step.outputs) touch(accesses.writes, position);
  if (step.workspace >= 0) touch(accesses.writes, step.workspace);
  return accesses;
}

bool must_wait(const Accesses& later, const Accesses& earlier) {
  return overlap(later.reads, earlier.writes) || overlap(later.writes, earlier.reads) ||
         overlap(later.writes, earlier.writes);
}

}  // namespace bonfire
