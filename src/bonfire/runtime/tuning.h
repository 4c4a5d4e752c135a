#pragma once
// Which of several candidates to use. What was measured once is remembered.

#include <span>
#include <vector>

#include "bonfire/kernel/kernel.h"

namespace bonfire::runtime {

// The position of the candidate to use. `reorder_elements` says how many elements each one would have reordered first.
size_t pick_candidate(const GraphNode& node, const std::vector<Candidate>& candidates,
                      std::span<const int64_t> reorder_elements);

}  // namespace bonfire::runtime
