#include "bonfire/runtime/tuning.h"

#include <algorithm>

namespace bonfire::runtime {

size_t pick_candidate(const GraphNode&, const std::vector<Candidate>& candidates,
                      std::span<const int64_t> reorder_elements) {
  size_t best = 0;
  for (size_t i = 1; i < candidates.size(); ++i)
    if (reorder_elements[i] < reorder_elements[best]) best = i;
  return best;
}

}  // namespace bonfire::runtime
