#pragma once
// The planner's last stage: where temporaries lie in the arena. Each is needed from the step that writes it to the last
// step that reads it; two that are never needed at once may share bytes. Largest first, each at the lowest place where
// it fits: simple, and within a few percent of the lower bound (the most bytes needed at any one step) on real nets.

#include <cstddef>
#include <span>
#include <vector>

namespace bonfire::runtime {

struct Interval {
  int first = 0, last = 0;  // steps, both included
  size_t bytes = 0;
};

struct Placement {
  std::vector<size_t> offsets;  // one per interval, multiples of 256
  size_t total = 0;             // bytes
};

Placement place(std::span<const Interval> intervals);

// Each in bytes of its own.
Placement place_apart(std::span<const Interval> intervals);

// The most bytes that any step needs: no placement can take less.
size_t lower_bound(std::span<const Interval> intervals);

}  // namespace bonfire::runtime
