#pragma once
// Times the candidates of a node on its device.

#include <vector>

#include "bonfire/kernel/kernel.h"

namespace bonfire::runtime {

// What is known of a candidate's time on a node from its times on other nodes, in nanoseconds.
struct Expectation {
  double least = 0;  // at its best speed so far; 0 when nothing is known
  double most = 0;   // at its worst
};

// Nanoseconds of each, on random data (zeros would run faster), in turns, so that a machine that is slow for a while is
// slow for all. Those that are expected to be quick go first; one that cannot be among the best even at its best speed
// is not run at all and counts as slow as expected. Those that are clearly slower than the best are run once or twice,
// the others more often. `expected` is empty or has one entry per candidate.
std::vector<double> measure(const GraphNode& node, const std::vector<Candidate>& candidates,
                            const std::vector<Expectation>& expected = {});

}  // namespace bonfire::runtime
