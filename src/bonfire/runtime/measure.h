#pragma once
// Times the candidates of a node on its device.

#include <vector>

#include "bonfire/kernel/kernel.h"

namespace bonfire::runtime {

// Nanoseconds of each, on random data (zeros would run faster), in turns, so that a machine that is slow for a while is
// slow for all. Those that are clearly slower than the best are run once, the others more often, and of long ones the
// time to be expected counts, not the least. One whose algorithm (its name up to the last colon) was far behind in
// another layout is not run, and counts as slow as that.
std::vector<double> measure(const GraphNode& node, const std::vector<Candidate>& candidates);

}  // namespace bonfire::runtime
