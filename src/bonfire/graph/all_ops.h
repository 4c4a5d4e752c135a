#pragma once
// The whole registry of ops, for what is said or checked of each of them.

#include <vector>

#include "bonfire/graph/op.h"

namespace bonfire {

// Every op that is registered by now, in the order of their names. Those of the library are there from its start.
std::vector<const Op*> all_ops();

}  // namespace bonfire
