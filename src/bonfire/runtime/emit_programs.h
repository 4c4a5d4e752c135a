#pragma once
// Builds the kernels of a step and the programs that run them, when order and places are known. Private to runtime.

#include "bonfire/runtime/node_order.h"
#include "bonfire/runtime/value_places.h"

namespace bonfire::runtime {

// Into the plan: programs with their steps, addresses and dependencies, and a note of each node.
void emit_programs(const NodeOrder& order, const ValuePlaces& places, Choices& choices, Plan& plan);

}  // namespace bonfire::runtime
