#pragma once
// Merging one elementwise node into another, for fuse_elementwise.

#include "bonfire/graph/graph.h"

namespace bonfire::passes {

// Whether `producer`, all of whose uses are in `consumer`, can run inside it: both elementwise over the same shape, in
// the same compute type, with nothing between them that only a store does (rounding to an integer).
bool can_merge(const GraphNode& producer, const GraphNode& consumer, const Graph& graph);

// Whether that would make one kernel of an addition and the activation of its result.
bool joins_add_and_activation(const GraphNode& producer, const GraphNode& consumer);

// Replaces both by one fused_elementwise node in consumer's place and returns it. The old nodes are erased.
GraphNode* merge(Graph& graph, GraphNode* producer, GraphNode* consumer);

}  // namespace bonfire::passes
