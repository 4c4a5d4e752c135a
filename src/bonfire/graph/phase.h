#pragma once
// Phase: what part of a step a node belongs to. Origin: of a node that computes a gradient, the node whose gradient
// that is (of a sum of gradients, the node whose output's gradient is summed; of a leaf's, the last one that reads it).
// So that whoever places forward nodes (a stage of a pipeline, a block that is recomputed) places their gradients too.

#include <cstdint>

namespace bonfire {

enum class Phase : uint8_t { forward, backward, update };

const char* to_string(Phase phase);

struct Origin {
  uint64_t trace = 0;     // in which the node was traced; 0: there is none
  uint32_t position = 0;  // there
};

}  // namespace bonfire
