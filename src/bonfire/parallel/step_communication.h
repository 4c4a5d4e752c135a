#pragma once
// What the ranks of a job move along the data axis in a step, as it was compiled: collectives after merging and before,
// and their bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "bonfire/runtime/plan.h"

namespace bonfire::fleet {

struct StepCommunication {
  int64_t merged = 0, unmerged = 0;   // collectives: that are made, and that there would be with one for each value
  int64_t scatters = 0, gathers = 0;  // of those that are made: reduce-scatters of gradients, gathers of parameters
  int64_t bytes = 0;                  // of the whole values

  // The gradient of an embedding is zero but for the rows that were looked up; it is reduced whole.
  struct Embedding {
    std::string path;     // of the module
    int64_t dense = 0;    // bytes of the whole gradient
    int64_t rows = 0;     // bytes of the rows that this rank has looked up, and of their numbers
    bool shared = false;  // with a layer that gives every row a gradient
  };
  std::vector<Embedding> embeddings = {};
};

StepCommunication communication_of(const runtime::Plan& plan);

// Of the step with collectives that this process has submitted last; before the first one nothing is counted.
StepCommunication last_communication();

}  // namespace bonfire::fleet
