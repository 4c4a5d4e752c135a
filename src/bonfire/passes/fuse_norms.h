#pragma once
// LARS, LAMB and gradient clipping take their sums of squares and apply them in one kernel where nothing comes between
// the two, such as a sum over the slices of other ranks, and nobody else reads the sums.

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_norms();

}  // namespace bonfire::passes
